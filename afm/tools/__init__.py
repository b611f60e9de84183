"""Tools of the agents, over one search index and one sandbox."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from afm.errors import ToolError, UserError
from afm.params.agents import AgentParams
from afm.params.tools import SandboxParams
from afm.tools.background import background
from afm.tools.base import (
    Passage,
    RemoteTool,
    RolloutContext,
    Tool,
    Toolbox,
    ToolResult,
    shorten,
)
from afm.tools.code import make_code
from afm.tools.index import build_index, open_index, page_url
from afm.tools.search import make_crawl_page, make_web_search, make_wiki_search

__all__ = [
    "TOOLS",
    "LocalToolbox",
    "Passage",
    "Tool",
    "ToolResult",
    "Toolbox",
    "build_index",
    "open_index",
    "open_toolbox",
    "page_url",
    "shorten",
]

MakeTool = Callable[[AgentParams, SandboxParams, Path | None], Tool]

TOOLS: dict[str, MakeTool] = {
    "wiki_search": make_wiki_search,
    "web_search": make_web_search,
    "crawl_page": make_crawl_page,
    "code": make_code,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalToolbox:
    """The tools of an agent in this process, each call with a time limit."""

    tools: Mapping[str, Tool]
    """Tools that need nobody else; they run in threads."""
    timeout_s: float
    """Of one call [s]."""
    max_observation_chars: int
    remote: Mapping[str, RemoteTool] = field(default_factory=dict)
    """Tools that ask other servers."""
    goal: str = ""
    """What the rollout is about."""

    def for_rollout(self, about: RolloutContext) -> Self:
        """See `Toolbox`."""
        return replace(self, goal=about.question)

    async def call(self, tool: str, argument: str) -> ToolResult:
        """See `Toolbox`; observations are shortened in the middle."""
        if tool not in self.tools and tool not in self.remote:
            raise UserError(
                f"unknown tool {tool!r}; this agent has {sorted({*self.tools, *self.remote})}"
            )
        try:
            async with asyncio.timeout(self.timeout_s):
                result = await self._answer(tool, argument)
        except TimeoutError as error:
            raise ToolError(
                f"{tool} gave no answer within {self.timeout_s} s", kind="timeout"
            ) from error
        return replace(result, text=shorten(result.text, self.max_observation_chars))

    async def _answer(self, tool: str, argument: str) -> ToolResult:
        if tool in self.remote:
            return await background().run(self.remote[tool](argument, self.goal))
        return await asyncio.to_thread(self.tools[tool], argument)


def open_toolbox(
    agent_params: AgentParams, sandbox_params: SandboxParams, index: Path | None
) -> LocalToolbox:
    """Open the tools of an agent that need nobody but this machine; `afm.tools.assembly` opens any.

    Args:
        agent_params: Which tools, how many results, how long observations are.
        sandbox_params: Limits of the code tool.
        index: Folder made by `build_index`; needed by the search tools only.

    Raises:
        UserError: unknown tool, or no index for a search tool.
        SandboxError: the code tool's sandbox does not isolate on this machine.
    """
    unknown = sorted(set(agent_params.tools) - set(TOOLS))
    if unknown:
        raise UserError(f"unknown tools {unknown}; there are {sorted(TOOLS)}")
    return LocalToolbox(
        tools={
            name: TOOLS[name](agent_params, sandbox_params, index) for name in agent_params.tools
        },
        timeout_s=agent_params.tool_timeout_s,
        max_observation_chars=agent_params.max_observation_chars,
    )
