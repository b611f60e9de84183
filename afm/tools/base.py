"""What a tool and a box of tools are."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from afm.types import Row

ERROR_KINDS = (
    "timeout",
    "rate_limited",
    "unavailable",
    "refused",
    "broken_answer",
    "too_large",
    "model",
    "overloaded",
    "replay_miss",
    "sandbox",
    "failed",
)
"""How a call can fail: `unavailable` is a server that is gone or answers 5xx, `refused` any other status but 429,
`broken_answer` one that is cut or not what was asked for, `model` a model behind a tool, `failed` anything else."""


class Passage(Row):
    """A row of a corpus."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a tool answered. A backend that failed raises `ToolError` instead."""

    text: str
    """Body of the observation."""
    status: Literal["ok", "empty"]
    """`empty`: the backend works and knows nothing; `text` says so."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the text does not tell, for instance that another backend had to answer."""


Tool = Callable[[str], ToolResult]
"""A tool: the stripped tag body to a result; raises `ToolError` or `SandboxError`."""

RemoteTool = Callable[[str, str], Coroutine[Any, Any, ToolResult]]
"""A tool that waits for others: tag body and goal to a result; runs in `afm.tools.background`'s loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutContext:
    """Which rollout calls."""

    scope: str
    """Identity of the rollout: equal for the same rollout in another run, different for any other."""
    question: str
    """What the rollout is about; tools that summarise do it towards this."""


class Toolbox(Protocol):
    """The tools of one agent, for one rollout or many."""

    def for_rollout(self, about: RolloutContext) -> Self:
        """Return the tools as one rollout uses them."""
        ...

    async def call(self, tool: str, argument: str) -> ToolResult:
        """Run a tool.

        Raises:
            ToolError: the backend failed or did not answer in time.
            SandboxError: the sandbox, not the code in it, failed.
            UserError: the agent has no such tool.
        """
        ...


def shorten(text: str, max_chars: int) -> str:
    """Cut the middle out of a text of more than `max_chars` characters (official code tool)."""
    if len(text) <= max_chars:
        return text
    marker = f"\n... {len(text) - max_chars} characters left out ...\n"
    room = max_chars - len(marker)
    if room < 2:
        return text[:max_chars]
    head = room - room // 2
    return text[:head] + marker + text[len(text) - room // 2 :]
