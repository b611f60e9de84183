"""What a tool and a box of tools are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from afm.types import Row


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


Tool = Callable[[str], ToolResult]
"""A tool: the stripped tag body to a result; raises `ToolError` or `SandboxError`."""


class Toolbox(Protocol):
    """The tools of one agent, for one rollout or many."""

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
