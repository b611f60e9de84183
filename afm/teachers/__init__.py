"""Teachers: where demonstrations come from."""

from collections.abc import Callable, Sequence

from afm.params.agents import AgentParams
from afm.params.rollout import MistakeShares, TeacherParams
from afm.teachers.base import Teacher, TeacherSession
from afm.teachers.recorded import RecordedTeacher
from afm.teachers.scripted import ScriptedTeacher
from afm.types import Query

__all__ = ["TEACHERS", "Teacher", "TeacherSession", "flawless", "open_teacher"]

MakeTeacher = Callable[[TeacherParams, AgentParams, Sequence[Query]], Teacher]

TEACHERS: dict[str, MakeTeacher] = {
    "scripted": ScriptedTeacher,
    "recorded": RecordedTeacher,
}
"""Values of params `teacher.kind`."""


def open_teacher(
    params: TeacherParams, agent_params: AgentParams, queries: Sequence[Query]
) -> Teacher:
    """Open the teacher for the queries that it will be asked."""
    return TEACHERS[params.kind](params, agent_params, queries)


def flawless(params: TeacherParams) -> TeacherParams:
    """Return the params of the same teacher without seeded mistakes."""
    none = MistakeShares(**dict.fromkeys(MistakeShares.model_fields, 0.0))
    return params.model_copy(update={"mistakes": none})
