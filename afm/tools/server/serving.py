"""Building a tool server from params, and running it until it is told to stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from afm.errors import UserError
from afm.ids import content_id
from afm.params.backends import ToolsParams
from afm.tools.assembly import REMOTE_TOOLS
from afm.tools.backends import Backends
from afm.tools.server.answering import Answering
from afm.tools.server.app import Served, make_app
from afm.tools.server.cache import AnswerCache
from afm.tools.server.desk import Capacity
from afm.tools.server.metrics import Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What a server does with requests; nothing here changes an answer but `top_k`."""

    tools: tuple[str, ...]
    top_k: int
    """Passages per query where a request does not say."""
    capacity: Capacity
    cache_folder: Path | None
    cache_ttl_s: float
    cache_entries: int
    """Answers kept in memory."""
    token: str | None


def build_server(
    params: ToolsParams, index: Path | None, settings: ServerSettings
) -> tuple[web.Application, Metrics]:
    """Return the application and what counts its calls.

    Raises:
        UserError: unknown tool, or a backend lacks its index, key or model.
    """
    unknown = sorted(set(settings.tools) - set(REMOTE_TOOLS))
    if unknown:
        raise UserError(f"cannot serve {unknown}; there are {sorted(REMOTE_TOOLS)}")
    if params.cassette is not None:
        raise UserError("tools.cassette is for rollouts: set it to null for a tool server")
    backends = Backends(params, index, settings.tools)
    metrics = Metrics()
    cache = AnswerCache(
        settings.cache_folder, ttl_s=settings.cache_ttl_s, max_entries=settings.cache_entries
    )
    answering = Answering(
        backends,
        settings.tools,
        settings=_fingerprint(params, index),
        has_summaries=params.summary is not None,
        top_k=settings.top_k,
        capacity=settings.capacity,
        cache=cache,
        metrics=metrics,
    )
    served = Served(answering=answering, backends=backends, metrics=metrics, token=settings.token)
    return make_app(served), metrics


def run_server(app: web.Application, host: str, ports: Sequence[int]) -> None:
    """Serve on all ports until SIGINT or SIGTERM; running requests are finished first."""
    import socket

    sockets = [socket.create_server((host, port), backlog=1024) for port in ports]
    listening = [f"http://{host}:{one.getsockname()[1]}" for one in sockets]
    web.run_app(app, sock=sockets, access_log=None, print=lambda _text: _say(listening))


def _say(listening: Sequence[str]) -> None:
    print("serving tools on", *listening, flush=True)


def _fingerprint(params: ToolsParams, index: Path | None) -> str:
    """Hash what answers depend on: all params of the tools, and which index it is."""
    passages = index / "passages.jsonl" if index is not None else None
    known = passages is not None and passages.exists()
    size = passages.stat().st_size if passages is not None and known else 0
    return content_id([params.model_dump(mode="json"), str(index), size])
