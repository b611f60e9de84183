"""Subcommands of `afm` that inspect and maintain a checkout; one module each."""
