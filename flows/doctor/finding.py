"""What a check says: one line, how bad it is, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    HIDDEN = "not allowed to see"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found."""

    topic: str
    state: State
    text: str
    todo: str = ""
    """What to do; empty where nothing is to be done or the text says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What is looked at."""

    root: Path
    """Folder of dvc.yaml."""
    home: Path
    """Folder of .results and the environments."""
    environ: Mapping[str, str]
    is_cluster: bool
    """Whether stages are to run on a cluster."""


def ok(topic: str, text: str) -> Finding:
    """Say that something is as it should be."""
    return Finding(topic=topic, state=State.OK, text=text)


def warning(topic: str, text: str, todo: str = "") -> Finding:
    """Say that something works, but perhaps not as wished."""
    return Finding(topic=topic, state=State.WARNING, text=text, todo=todo)


def problem(topic: str, text: str, todo: str = "") -> Finding:
    """Say that something would make a run fail."""
    return Finding(topic=topic, state=State.PROBLEM, text=text, todo=todo)


def hidden(topic: str, text: str, todo: str = "") -> Finding:
    """Say that it cannot be looked at."""
    return Finding(topic=topic, state=State.HIDDEN, text=text, todo=todo)
