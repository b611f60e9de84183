"""`filter`: the four progressive stages of section 3.2 of the paper."""

from typing import Annotated, Literal

from pydantic import Field

from afm.params._model import AgentName, Count, Positive, Section, Share


class ComplexityParams(Section):
    """Stage 1: trajectories that are too short teach nothing."""

    measure: Literal["hops", "tool_calls"]
    minimum: Count


class QualityParams(Section):
    """Stage 2: wrong, redundant or ungrammatical trajectories."""

    max_repeated_calls: Count
    """Tool calls whose argument repeats an earlier one of the trajectory [calls]."""
    max_unjudged_share: Share
    """Above this share of judged answers without a verdict the stage stops: the judge is broken."""


class ReflectionParams(Section):
    """Stage 3: trajectories without reflection are down-sampled."""

    keep_share_without: Share
    drop_all_for: Annotated[tuple[AgentName, ...], Field(strict=False)]


class CorrectionParams(Section):
    """Stage 4: trajectories that corrected themselves are up-sampled."""

    low_score_max: Annotated[int, Field(ge=1, le=4)]
    """A first double check at or below this is low [score 1 to 4]."""
    copies: Positive
    """How often such a trajectory stands in the accepted set."""


class FilterParams(Section):
    """Section `filter`."""

    seed: int
    complexity: ComplexityParams
    quality: QualityParams
    reflection: ReflectionParams
    correction: CorrectionParams
