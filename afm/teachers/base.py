"""What a teacher is: it opens sessions that run through the same loop and tools as any policy."""

from typing import Protocol

from afm.rollout import Session
from afm.tools.base import Toolbox
from afm.types import Query


class TeacherSession(Session, Protocol):
    """A session that knows what it was told to demonstrate."""

    @property
    def mistake(self) -> str | None:
        """Name of the seeded mistake, as in params `teacher.mistakes`; never part of the text."""
        ...

    @property
    def toolbox(self) -> Toolbox | None:
        """Tools to use instead of the agent's own, for recordings."""
        ...


class Teacher(Protocol):
    """A source of demonstrations."""

    def session(self, query: Query, seed: int) -> TeacherSession:
        """Start one demonstration; equal arguments give an equal one."""
        ...
