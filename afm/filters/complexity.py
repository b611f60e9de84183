"""Stage 1: trajectories that are too short teach nothing (paper 3.2)."""

from afm.filters.candidate import KEEP, Candidate, FilterContext, Verdict

REASONS = {"hops": "too_few_hops", "tool_calls": "too_few_tool_calls"}
"""Reason by `filter.complexity.measure`."""


def check(candidate: Candidate, context: FilterContext) -> Verdict:
    """Drop a candidate whose hops or tool calls are below the minimum."""
    params = context.params.complexity
    measured = candidate.hops if params.measure == "hops" else candidate.tool_calls
    return KEEP if measured >= params.minimum else Verdict(reason=REASONS[params.measure])
