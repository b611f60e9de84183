"""Running a stage as a Kubernetes Job: API, settings, manifest, logs, verdict, and the executor over them."""
