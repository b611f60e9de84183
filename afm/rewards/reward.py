"""What a reward is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from afm.errors import JudgeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """Outcome of one trajectory."""

    value: float
    breakdown: Mapping[str, float]
    """The parts that `value` was made of, each under its own name."""

    def __post_init__(self) -> None:
        """Refuse what is not a number.

        Raises:
            JudgeError: the value or a part is NaN or infinite; such a trajectory is unjudged.
        """
        for name, part in {"value": self.value, **self.breakdown}.items():
            if not math.isfinite(part):
                raise JudgeError(f"reward part {name!r} is {part}: not a verdict")
