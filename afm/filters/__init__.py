"""Progressive filtering of teacher trajectories, in the order of the paper (section 3.2)."""

from collections.abc import Callable, Iterable, Iterator

from afm.filters import complexity, correction, quality, reflection
from afm.filters.candidate import Candidate, FilterContext, Judge, Verdict, measure
from afm.params.filter import FilterParams
from afm.types import LedgerRow, Query

__all__ = [
    "FILTERS",
    "KNOBS",
    "Candidate",
    "FilterContext",
    "Judge",
    "answers_to_judge",
    "decide",
    "measure",
    "reasons",
]

Filter = Callable[[Candidate, FilterContext], Verdict]

FILTERS: dict[str, Filter] = {
    "complexity": complexity.check,
    "quality": quality.check,
    "reflection": reflection.check,
    "correction": correction.check,
}
"""The four stages; a later one sees only what the earlier ones kept."""

KNOBS = {
    "too_few_hops": "lower filter.complexity.minimum",
    "too_few_tool_calls": "lower filter.complexity.minimum",
    "unfinished": "raise agents.<agent>.max_tool_calls or use a better teacher",
    "unjudged": "mend the judge (the ledger has its message)",
    "wrong_answer": "use a better teacher or raise rollout.num_samples",
    "redundant_call": "raise filter.quality.max_repeated_calls",
    "instruction_violation": "check agents.<agent>.grammar or use a better teacher",
    "no_reflection": "raise filter.reflection.keep_share_without or empty filter.reflection.drop_all_for",
}
"""What to do when a reason drops too much."""


def reasons(params: FilterParams) -> tuple[str, ...]:
    """Return the reasons that can drop a row under these params, in the order in which they are checked."""
    first = complexity.REASONS[params.complexity.measure]
    return (first, *quality.REASONS, *reflection.REASONS)


def answers_to_judge(
    candidates: Iterable[Candidate], params: FilterParams
) -> Iterator[tuple[str, Query]]:
    """Yield the answers that the quality stage will have judged, with their queries."""
    for candidate in candidates:
        answer = quality.final_answer(candidate)
        if answer is not None and complexity.is_long_enough(candidate, params):
            yield answer, candidate.query


def decide(candidate: Candidate, context: FilterContext) -> LedgerRow:
    """Send a candidate through the filters until one drops it."""
    copies, values = 1, candidate.values()
    reason: str | None = None
    for check in FILTERS.values():
        verdict = check(candidate, context)
        values |= verdict.values
        copies = max(copies, verdict.copies)
        reason = verdict.reason
        if reason is not None:
            break
    return LedgerRow(
        id=candidate.trajectory.trajectory_id,
        query_id=candidate.query.query_id,
        decision="dropped" if reason else "kept",
        reason=reason or "ok",
        copies=copies if reason is None else 1,
        values=values,
    )
