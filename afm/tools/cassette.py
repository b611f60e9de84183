"""Cassettes: the answer of every tool call of a run, and its replay without network, bit for bit.

A call is found by who asked what: the rollout, the tool, its argument and the params that shape an answer. The k-th
identical call of one rollout gets the k-th recorded answer; a rollout calls in order, so neither concurrency nor the
order of rollouts matters. Failures are recorded and replayed too. A call that was not recorded is an error.
"""

import asyncio
import fcntl
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from afm.errors import SandboxError, ToolError, UserError
from afm.ids import canonical_json, content_id
from afm.jsonl import iter_rows
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.tools import SandboxParams
from afm.tools.base import RolloutContext, Toolbox, ToolResult
from afm.types import Row

_SANDBOX = "sandbox"
Key = tuple[str, int]
"""Hash of the request, and how often the rollout made it before."""


class Take(Row):
    """One recorded call."""

    key: str
    """Hash of scope, tool, argument and settings."""
    number: int
    """How often the rollout had made this request before."""
    scope: str
    tool: str
    argument: str
    status: Literal["ok", "empty", "error"]
    text: str
    """Observation, or what failed."""
    error_kind: str | None
    metadata: dict[str, str]


def request_settings(
    agent_params: AgentParams, tools_params: ToolsParams, sandbox_params: SandboxParams
) -> str:
    """Hash the params that shape answers; where endpoints are, and how hard they are pressed, is left out."""
    shaping = {"wiki_search", "web_search", "crawl_page", "site"}
    tools = tools_params.model_dump(mode="json", include=shaping)
    web = {"obey_robots", "max_pages", "max_page_bytes", "max_page_chars", "max_redirects"}
    return content_id(
        {
            "agent": agent_params.model_dump(
                mode="json", include={"top_k", "max_observation_chars"}
            ),
            "tools": tools,
            "web": tools_params.web.model_dump(mode="json", include=web),
            "summary": tools_params.summary and tools_params.summary.model,
            "vision": tools_params.vision and tools_params.vision.endpoint.model,
            "sandbox": sandbox_params.model_dump(mode="json"),
        }
    )


@dataclass(kw_only=True, slots=True)
class _Requests:
    """Numbers the identical requests of one rollout."""

    settings: str
    scope: str = ""
    seen: Counter[str] = field(default_factory=Counter)

    def next_key(self, tool: str, argument: str) -> Key:
        key = content_id([self.scope, tool, argument, self.settings])
        self.seen[key] += 1
        return key, self.seen[key] - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorder:
    """Passes calls on and appends each answer to a cassette; several processes may share one."""

    path: Path
    toolbox: Toolbox
    requests: _Requests

    @classmethod
    def open(cls, path: Path, settings: str, toolbox: Toolbox) -> Self:
        """Open or create a cassette; what a kill tore off its end is removed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, b"")
        return cls(path=path, toolbox=toolbox, requests=_Requests(settings=settings))

    def for_rollout(self, about: RolloutContext) -> Self:
        """See `Toolbox`; the same rollout recorded again replaces what it recorded before."""
        requests = _Requests(settings=self.requests.settings, scope=about.scope)
        return replace(self, toolbox=self.toolbox.for_rollout(about), requests=requests)

    async def call(self, tool: str, argument: str) -> ToolResult:
        """See `Toolbox`."""
        key, number = self.requests.next_key(tool, argument)
        take = Take(
            key=key,
            number=number,
            scope=self.requests.scope,
            tool=tool,
            argument=argument,
            status="error",
            text="",
            error_kind=None,
            metadata={},
        )
        try:
            result = await self.toolbox.call(tool, argument)
        except (ToolError, SandboxError) as error:
            kind = error.kind if isinstance(error, ToolError) else _SANDBOX
            await self._keep(take.model_copy(update={"text": str(error), "error_kind": kind}))
            raise
        answer = {"status": result.status, "text": result.text, "metadata": dict(result.metadata)}
        await self._keep(take.model_copy(update=answer))
        return result

    async def _keep(self, take: Take) -> None:
        line = canonical_json(take.model_dump(mode="json")) + "\n"
        await asyncio.to_thread(_append, self.path, line.encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """Answers from a cassette and asks nobody."""

    path: Path
    takes: Mapping[Key, Take]
    requests: _Requests

    @classmethod
    def open(cls, path: Path, settings: str) -> Self:
        """Read a cassette.

        Raises:
            UserError: there is none, or a row is malformed.
        """
        if not path.is_file():
            raise UserError(
                f"tools.cassette.folder: no such file: {path}; record it first, with mode record"
            )
        takes = {(take.key, take.number): take for take in iter_rows(path, Take)}
        return cls(path=path, takes=takes, requests=_Requests(settings=settings))

    def for_rollout(self, about: RolloutContext) -> Self:
        """See `Toolbox`."""
        requests = _Requests(settings=self.requests.settings, scope=about.scope)
        return replace(self, requests=requests)

    async def call(self, tool: str, argument: str) -> ToolResult:
        """See `Toolbox`.

        Raises:
            ToolError: what was recorded, or kind `replay_miss`.
            SandboxError: what was recorded.
        """
        key, number = self.requests.next_key(tool, argument)
        take = self.takes.get((key, number))
        if take is None:
            raise ToolError(
                f"{self.path} has no take {number} of {tool} {argument[:80]!r} in rollout "
                f"{self.requests.scope}: other params, another policy, or an unfinished recording",
                kind="replay_miss",
            )
        if take.status != "error":
            return ToolResult(text=take.text, status=take.status, metadata=take.metadata)
        if take.error_kind == _SANDBOX:
            raise SandboxError(take.text)
        raise ToolError(take.text, kind=take.error_kind or "failed")


def _append(path: Path, line: bytes) -> None:
    """Append a line under a lock, after removing a last one without an end."""
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        if size and _byte_at(path, size - 1) != b"\n":
            stream.truncate(path.read_bytes().rfind(b"\n") + 1)
        stream.write(line)
        stream.flush()


def _byte_at(path: Path, offset: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(1)
