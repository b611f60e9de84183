"""Stage 3: enrich reflection by down-sampling trajectories without it (paper 3.2; math and code: drop them)."""

from afm.filters.candidate import KEEP, Candidate, FilterContext, Verdict
from afm.ids import derived_seed

REASONS = ("no_reflection",)
SEED_RANGE = float(1 << 63)
"""`derived_seed` is uniform below this."""


def check(candidate: Candidate, context: FilterContext) -> Verdict:
    """Keep a seeded share of the candidates without reflection, none of them for some agents.

    The draw depends on the seed and the trajectory's id alone: other rows do not change it.
    """
    if candidate.has_reflection:
        return KEEP
    params = context.params.reflection
    seed = derived_seed(context.params.seed, "reflection", candidate.trajectory.trajectory_id)
    dropped = context.agent in params.drop_all_for or seed / SEED_RANGE >= params.keep_share_without
    return Verdict(reason="no_reflection") if dropped else KEEP
