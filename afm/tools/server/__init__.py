"""The tools over HTTP, with the bodies of the official tool servers: `afm serve-tools`."""
