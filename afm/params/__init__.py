"""Typed sections of params.yaml, one module per section, so that a stage depends only on those it reads."""
