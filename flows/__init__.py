"""Scheduling, lineage and the `afm` command: everything around the stages."""
