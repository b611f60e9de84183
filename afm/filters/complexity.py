"""Stage 1: trajectories that are too short teach nothing (paper 3.2)."""

from afm.filters.candidate import KEEP, Candidate, FilterContext, Verdict
from afm.params.filter import FilterParams

REASONS = {"hops": "too_few_hops", "tool_calls": "too_few_tool_calls"}
"""Reason by `filter.complexity.measure`."""


def check(candidate: Candidate, context: FilterContext) -> Verdict:
    """Drop a candidate whose hops or tool calls are below the minimum."""
    if is_long_enough(candidate, context.params):
        return KEEP
    return Verdict(reason=REASONS[context.params.complexity.measure])


def is_long_enough(candidate: Candidate, params: FilterParams) -> bool:
    """Tell whether a candidate reaches the minimum."""
    measure, minimum = params.complexity.measure, params.complexity.minimum
    return (candidate.hops if measure == "hops" else candidate.tool_calls) >= minimum
