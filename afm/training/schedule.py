"""Learning rate of a step as a share of its peak."""

import math
from typing import Literal

ScheduleName = Literal["cosine", "linear", "constant"]


def warmup_steps(total_steps: int, warmup_share: float) -> int:
    """Return how many steps the rate rises; rounded up, as transformers does."""
    return math.ceil(total_steps * warmup_share)


def lr_share(step: int, *, total_steps: int, warmup_share: float, schedule: ScheduleName) -> float:
    """Return the learning rate of a step as a share of its peak.

    Args:
        step: From 0.
        total_steps: Steps of the whole run.
        warmup_share: Share of the steps in which the rate rises linearly; the first one already
            learns.
        schedule: How it falls afterwards: `linear` or `cosine` towards 0 after the last step, or
            not at all.
    """
    assert 0 <= step < total_steps
    rising = warmup_steps(total_steps, warmup_share)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, total_steps - rising)
    if schedule == "linear":
        return 1 - done
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0
