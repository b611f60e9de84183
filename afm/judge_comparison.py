"""Which scores would change under another judge: stored records, graded twice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from afm.averages import mean
from afm.errors import UserError
from afm.scoring import ScoreRow
from afm.types import Query, Row

Grades = Mapping[str, float | None]
"""Trajectory id -> score; None without a verdict."""
GradeAll = Callable[[Sequence[tuple[str, str, Query]]], Grades]
"""Trajectory id, answer and query of each record to grades."""


class Flip(Row):
    """A record that two judges score differently."""

    trajectory_id: str
    query_id: str
    variant: str
    question: str
    golds: tuple[str, ...]
    answer: str
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeComparison:
    """Two judges on the same answers."""

    answers: int
    """Answers that both were asked about; a record without an answer has score 0 whoever judges."""
    unjudged: tuple[int, int]
    """Answers without a verdict, by judge."""
    flips: tuple[Flip, ...]
    means: Mapping[str, tuple[float, float]]
    """Variant -> mean score under each judge, over the records that both judged, those without an answer included."""


def compare_judges(
    rows: Sequence[ScoreRow], queries: Mapping[str, Query], first: GradeAll, second: GradeAll
) -> JudgeComparison:
    """Grade records under two judges.

    Args:
        rows: Of the score stage; controls and failed rollouts do not count.
        queries: By id.
        first: One judge.
        second: The other.

    Raises:
        UserError: a record's query is not there, or there is no record.
    """
    shown = [row for row in rows if not row.control and row.unscored != "failed"]
    if not shown:
        raise UserError("there are no scored records: run score first")
    unknown = sorted({row.query_id for row in shown} - set(queries))
    if unknown:
        raise UserError(f"unknown query_id {unknown[0]!r}: run prepare, evaluate and score again")
    asked = [
        (r.trajectory_id, r.answer, queries[r.query_id]) for r in shown if r.answer is not None
    ]
    grades = (first(asked), second(asked))
    return JudgeComparison(
        answers=len(asked),
        unjudged=(_missing(grades[0]), _missing(grades[1])),
        flips=tuple(_flips(shown, queries, grades)),
        means={
            variant: _means([row for row in shown if row.variant == variant], grades)
            for variant in dict.fromkeys(row.variant for row in shown)
        },
    )


def _missing(grades: Grades) -> int:
    return sum(grade is None for grade in grades.values())


def _flips(
    rows: Sequence[ScoreRow], queries: Mapping[str, Query], grades: tuple[Grades, Grades]
) -> list[Flip]:
    return [
        Flip(
            trajectory_id=row.trajectory_id,
            query_id=row.query_id,
            variant=row.variant,
            question=queries[row.query_id].question,
            golds=queries[row.query_id].answers,
            answer=row.answer,
            first=grades[0][row.trajectory_id],
            second=grades[1][row.trajectory_id],
        )
        for row in rows
        if row.answer is not None and grades[0][row.trajectory_id] != grades[1][row.trajectory_id]
    ]


def _means(rows: Sequence[ScoreRow], grades: tuple[Grades, Grades]) -> tuple[float, float]:
    pairs = [tuple(own.get(row.trajectory_id, 0.0) for own in grades) for row in rows]
    judged = [(one, other) for one, other in pairs if one is not None and other is not None]
    return mean([one for one, _ in judged]), mean([other for _, other in judged])
