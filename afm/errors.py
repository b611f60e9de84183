"""One exception type per outside boundary, each also the built-in it refines.

A failed rollout is data and is recorded; a failed stage is an exception. None of these ever becomes a score.
"""


class UserError(ValueError):
    """Something a user can mend: says what is wrong, which value, what is allowed and what to do."""


class ModelError(RuntimeError):
    """A model endpoint did not answer, or answered with something that is not a completion."""


class ToolError(RuntimeError):
    """A tool's backend failed; never turned into an empty observation."""

    def __init__(self, message: str, *, kind: str = "failed") -> None:
        """Say what failed; `kind` is one of `afm.tools.base.ERROR_KINDS`."""
        super().__init__(message)
        self.kind = kind


class SandboxError(RuntimeError):
    """The sandbox itself failed, as opposed to the code that ran in it."""


class JudgeError(RuntimeError):
    """A judge gave no verdict; the item is unjudged, which is not a score."""


class TrainerError(RuntimeError):
    """A trainer ended without the model it was asked for."""
