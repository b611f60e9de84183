"""DAPO with verl's own trainer: the same run on a CPU and on GPUs.

`run` is what crosses the process border, `settings` what verl is told, `main` the trainer's process. Modules that
import verl, ray or torch at the top are only ever imported inside that process and its workers.
"""
