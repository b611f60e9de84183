"""`evaluate`, `score` and `report`: what is sampled, how it is judged, what is shown."""

from typing import Annotated

from pydantic import Field

from afm.params._model import Positive, PositiveFloat, Section, Share


class EvaluateParams(Section):
    """Section `evaluate`."""

    seed: int
    num_samples: Positive
    """Samples per query at `temperature`."""
    temperature: PositiveFloat
    top_p: Annotated[float, Field(gt=0, le=1)]
    greedy: bool
    """Also one greedy sample per query."""
    shuffled_control: bool
    """Also roll out with the observations of other questions, for the variants sft and rl."""
    max_failed_share: Share


class ScoreParams(Section):
    """Section `score`."""

    seed: int
    bootstrap_resamples: Positive
    confidence: Annotated[float, Field(gt=0, lt=1)]
    """Of two-sided intervals."""
    max_unjudged_share: Share
    """Above this share of records without a verdict the stage stops: the judge is broken."""
    gate_tolerance: Share
    """The RL model may be worse than the SFT model by at most this to become champion."""


class ReportParams(Section):
    """Section `report`."""

    num_sample_trajectories: Positive
    histogram_bins: Positive
