"""The tools of an agent as params configure them: backends, then recording or replay around all of it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from afm.errors import UserError
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.tools import SandboxParams
from afm.tools import TOOLS, LocalToolbox, open_toolbox
from afm.tools.answers import addresses, hits_result, passages_result
from afm.tools.backends import Backends
from afm.tools.background import background
from afm.tools.base import RemoteTool, Toolbox, ToolResult
from afm.tools.cassette import Player, Recorder, request_settings

REMOTE_TOOLS = ("wiki_search", "web_search", "crawl_page", "visual_inspector")
NO_ADDRESS = "No address given."


def assemble_toolbox(
    agent_params: AgentParams,
    sandbox_params: SandboxParams,
    tools_params: ToolsParams,
    index: Path | None,
    *,
    cell: str,
) -> Toolbox:
    """Open the tools of an agent.

    Args:
        agent_params: Which tools, how many results, how long observations are.
        sandbox_params: Limits of the code tool.
        tools_params: Which backends answer, and whether calls are recorded or replayed.
        index: Folder made by `build_index`; needed by the backends `index` and `site` only.
        cell: Stage cell that calls, for instance `rollout@web`: the name of its cassette.

    Raises:
        UserError: unknown tool, or a backend lacks its index, key, model or cassette.
        SandboxError: the code tool's sandbox does not isolate on this machine.
    """
    cassette = tools_params.cassette
    if cassette is None:
        return _live(agent_params, sandbox_params, tools_params, index)
    settings = request_settings(agent_params, tools_params, sandbox_params)
    path = Path(cassette.folder) / f"{cell}.jsonl"
    if cassette.mode == "replay":
        return Player.open(path, settings)
    live = _live(agent_params, sandbox_params, tools_params, index)
    return Recorder.open(path, settings, live)


def _live(
    agent_params: AgentParams,
    sandbox_params: SandboxParams,
    tools_params: ToolsParams,
    index: Path | None,
) -> LocalToolbox:
    unknown = sorted(set(agent_params.tools) - {*TOOLS, *REMOTE_TOOLS})
    if unknown:
        raise UserError(f"unknown tools {unknown}; there are {sorted({*TOOLS, *REMOTE_TOOLS})}")
    remote = tuple(tool for tool in agent_params.tools if _is_remote(tool, tools_params))
    local = tuple(tool for tool in agent_params.tools if tool not in remote)
    here = agent_params.model_copy(update={"tools": local})
    toolbox = open_toolbox(here, sandbox_params, index)
    if not remote:
        return toolbox
    backends = _shared_backends(tools_params, index, remote, os.getpid())
    made: dict[str, RemoteTool] = {
        tool: _remote_tool(tool, backends, agent_params.top_k) for tool in remote
    }
    return replace(toolbox, remote=made)


def _is_remote(tool: str, params: ToolsParams) -> bool:
    """Tell whether a tool needs more than this machine's index or sandbox."""
    return tool in REMOTE_TOOLS and getattr(params, tool, None) != ("index",)


@lru_cache(maxsize=8)
def _shared_backends(
    params: ToolsParams, index: Path | None, tools: Sequence[str], _pid: int
) -> Backends:
    """Open backends once per process: their connections, token buckets and site are shared by all rollouts."""
    backends = Backends(params, index, tools)
    background().at_exit(backends.close)
    return backends


def _remote_tool(tool: str, backends: Backends, top_k: int) -> RemoteTool:
    async def wiki_search(argument: str, _goal: str) -> ToolResult:
        found = await backends.retrieve(argument, top_k)
        result = passages_result([one.passage for one in found.value])
        return replace(result, metadata=found.metadata)

    async def web_search(argument: str, _goal: str) -> ToolResult:
        found = await backends.search(argument, top_k)
        return replace(hits_result(found.value), metadata=found.metadata)

    async def crawl_page(argument: str, goal: str) -> ToolResult:
        urls = addresses(argument)
        if not urls:
            return ToolResult(text=NO_ADDRESS, status="empty")
        read = await backends.crawl(urls, goal)
        return replace(read.value, metadata={**read.metadata, **read.value.metadata})

    async def visual_inspector(argument: str, goal: str) -> ToolResult:
        assert backends.inspector is not None
        return await backends.inspector.inspect(argument, goal)

    made: dict[str, RemoteTool] = {
        "wiki_search": wiki_search,
        "web_search": web_search,
        "crawl_page": crawl_page,
        "visual_inspector": visual_inspector,
    }
    return made[tool]
