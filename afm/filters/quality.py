"""Stage 2: unfinished, wrong, redundant or ungrammatical trajectories (paper 3.2)."""

from afm.errors import JudgeError
from afm.filters.candidate import Candidate, FilterContext, Verdict
from afm.types import StopReason

REASONS = (
    "unfinished",
    "unjudged",
    "wrong_answer",
    "redundant_call",
    "instruction_violation",
)
"""In the order in which they are checked."""


def check(candidate: Candidate, context: FilterContext) -> Verdict:
    """Drop a candidate that no model should imitate; an answer without a verdict is no evidence and is dropped too."""
    answer = final_answer(candidate)
    if answer is None:
        return Verdict(reason="unfinished")
    try:
        correct = context.judge(answer, candidate.query) == 1.0
    except JudgeError as error:
        return Verdict(reason="unjudged", values={"unjudged": str(error)})
    return Verdict(reason=_fault(candidate, context, correct), values={"correct": correct})


def final_answer(candidate: Candidate) -> str | None:
    """Return the answer of a finished candidate; None for an unfinished one."""
    trajectory = candidate.trajectory
    return trajectory.answer if trajectory.stop_reason is StopReason.ANSWERED else None


def _fault(candidate: Candidate, context: FilterContext, correct: bool) -> str | None:
    if not correct:
        return "wrong_answer"
    if candidate.repeated_calls > context.params.quality.max_repeated_calls:
        return "redundant_call"
    return "instruction_violation" if candidate.violations else None
