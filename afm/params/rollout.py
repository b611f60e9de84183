"""`teacher` and `rollout`: who demonstrates, how often, and within which limits."""

from typing import Literal

from afm.params._model import Positive, Section, Share


class MistakeShares(Section):
    """Seeded shares of the scripted teacher's rollouts that show one fault each."""

    too_few_steps: Share
    unfinished: Share
    """Knows the answer, but goes on checking until the limits of a rollout stop it."""
    redundant_call: Share
    wrong_answer: Share
    missing_reflection: Share
    instruction_violation: Share
    late_correction: Share
    """Starts wrong, doubts itself in an early double check, and corrects itself. Not a fault."""
    detour: Share
    """Searches for the wrong thing first, notices in a reflection, searches again. Not a fault."""


class RecordingParams(Section):
    """Trajectories that a teacher made elsewhere."""

    path: str
    """JSON Lines of `Trajectory`."""
    sha256: str
    """Hash of the file: lineage knows it by that."""


class TeacherParams(Section):
    """Section `teacher`."""

    name: str
    kind: Literal["scripted", "recorded"]
    recording: RecordingParams | None
    """For kind `recorded`."""
    max_response_tokens: Positive
    """Longest demonstration [words and punctuation marks], observations included."""
    mistakes: MistakeShares


class RolloutParams(Section):
    """Section `rollout`."""

    seed: int
    num_samples: Positive
    """Rollouts per query."""
    concurrency: Positive
    """Rollouts in flight."""
    max_failed_share: Share
    """Above this share of failed rollouts the stage stops."""
