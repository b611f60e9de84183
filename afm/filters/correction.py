"""Stage 4: up-sample trajectories that doubted themselves first and were right in the end (paper 3.2)."""

from afm.filters.candidate import KEEP, Candidate, FilterContext, Verdict


def check(candidate: Candidate, context: FilterContext) -> Verdict:
    """Repeat a candidate whose first double check is low; stage 2 has seen to it that its answer is right."""
    params = context.params.correction
    score = candidate.first_double_check
    corrected = score is not None and score <= params.low_score_max
    return Verdict(copies=params.copies) if corrected else KEEP
