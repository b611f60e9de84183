"""Tasks that a program solves: families of them, each item with a reference solution."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from afm.types import CodeTest


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One item of a family."""

    question: str
    program: str
    """Python that prints what is asked for, or a function with an example call."""
    answers: tuple[str, ...] = ()
    """Empty where tests decide."""
    entry_point: str | None = None
    tests: tuple[CodeTest, ...] = ()
    wording: str = ""
    """Identifier of the phrasing, where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Which side of the held-out split tasks are for; the two sides of a family share no task."""

    seed: int
    held_out: bool
    share: float
    """Share of a family's parameters that is kept for held-out tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Tasks of one kind, in a fixed random order."""

    name: str
    make: Callable[[Side], Iterator[Task]]
