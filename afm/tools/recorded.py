"""A toolbox that answers with given observations, whatever is asked."""

from collections.abc import Sequence
from typing import Self

from afm.errors import UserError
from afm.tools.base import RolloutContext, ToolResult


class RecordedToolbox:
    """Answers the k-th call of ONE rollout with the k-th observation, and begins again after the last.

    The control with shuffled observations uses it: a policy that reads its tools must fail on those of
    other questions.
    """

    def __init__(self, observations: Sequence[str]) -> None:
        """Take the observations in the order of the calls.

        Raises:
            UserError: there is none.
        """
        if not observations:
            raise UserError("a recorded toolbox needs at least one observation")
        self._observations = tuple(observations)
        self._calls = 0

    def for_rollout(self, _about: RolloutContext) -> Self:
        """Return itself: it is made for one rollout."""
        return self

    async def call(self, tool: str, argument: str) -> ToolResult:
        """Return the next observation; see `Toolbox`."""
        text = self._observations[self._calls % len(self._observations)]
        self._calls += 1
        return ToolResult(text=text, status="ok")
