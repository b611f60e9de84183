"""The routes: official requests in, official answers out; typed by header, errors by status."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from afm.errors import ToolError
from afm.tools.backends import Backends
from afm.tools.bodies import (
    METADATA_HEADER,
    STATUS_HEADER,
    CrawlRequest,
    CrawlResponse,
    InspectRequest,
    RetrieveRequest,
    SearchRequest,
)
from afm.tools.server.answering import Answering
from afm.tools.server.cache import Answer
from afm.tools.server.metrics import Metrics

SOURCE_HEADER = "X-AFM-Source"
"""`backend`, `cache` or `coalesced`."""
STATUSES = {
    "overloaded": 429,
    "timeout": 504,
    "unavailable": 503,
    "rate_limited": 503,
}
"""HTTP status by kind of error; 502 for all others."""
RETRY_AFTER_S = {429: 1, 503: 2}
MAX_BODY_BYTES = 1024 * 1024
BODY_S = 10.0
"""Longest arrival of a request's body [s]."""
OPEN_PATHS = ("/health", "/metrics")

BodyT = TypeVar("BodyT", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What a server needs to know."""

    answering: Answering
    backends: Backends
    metrics: Metrics
    token: str | None
    """Whoever sends it may call; None lets everybody."""


def make_app(served: Served) -> web.Application:
    """Build the server; it closes the backends when it ends."""
    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[token_middleware(served.token)]
    )
    answering = served.answering
    routes: dict[str, tuple[str, Any, Any]] = {
        "wiki_search": ("/retrieve", RetrieveRequest, answering.retrieve),
        "web_search": ("/search", SearchRequest, answering.search),
        "crawl_page": ("/crawl_page", CrawlRequest, answering.crawl),
        "visual_inspector": ("/visual_inspector", InspectRequest, answering.inspect),
    }
    for tool in answering.tools:
        path, body, answer = routes[tool]
        app.router.add_post(path, partial(_serve, served, tool, body, answer))
    app.router.add_get("/health", partial(_health, served))
    app.router.add_get("/metrics", partial(_metrics, served))

    async def close(_app: web.Application) -> None:
        await served.backends.close()

    app.on_cleanup.append(close)
    return app


def token_middleware(token: str | None) -> Any:
    """Return the middleware that lets in who has the token: as bearer, or as X-API-KEY like Serper."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None or request.path in OPEN_PATHS or _has_token(request, token):
            return await handler(request)
        message = "send the token as `Authorization: Bearer ...` or `X-API-KEY`"
        return _error_response("unauthorised", message, 401)

    return check


def _has_token(request: web.Request, token: str) -> bool:
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    given = bearer or request.headers.get("X-API-KEY", "")
    return hmac.compare_digest(given.encode(), token.encode())


async def _serve(
    served: Served,
    tool: str,
    body: type[BodyT],
    answer: Callable[[BodyT], Awaitable[tuple[Answer, str]]],
    request: web.Request,
) -> web.StreamResponse:
    """Answer one call and count how it ended, whatever happens."""
    started = time.perf_counter()
    outcome, kind = "error", "failed"
    try:
        asked = await _read(request, body)
        found, source = await answer(asked)
        outcome, kind = found.status, ""
        return _response(tool, found, source, time.perf_counter() - started)
    except (ValidationError, web.HTTPException, TimeoutError) as error:
        kind = "bad_request"
        return _error_response(kind, _first_line(error), _bad_status(error))
    except ToolError as error:
        kind = error.kind
        return _failure(tool, error, time.perf_counter() - started)
    finally:
        served.metrics.ended(tool, outcome, kind, time.perf_counter() - started)


async def _read(request: web.Request, body: type[BodyT]) -> BodyT:
    async with asyncio.timeout(BODY_S):
        raw = await request.read()
    return body.model_validate_json(raw)


def _bad_status(error: Exception) -> int:
    if isinstance(error, web.HTTPException):
        return error.status
    return 408 if isinstance(error, TimeoutError) else 422


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in fault['loc']) or 'body'}: {fault['msg']}"
    return str(error) or f"the body did not arrive within {BODY_S:g} s"


def _response(tool: str, answer: Answer, source: str, seconds: float) -> web.Response:
    body = dict(answer.body)
    if tool == "crawl_page":
        body["processing_time"] = round(seconds, 6)
    metadata = {METADATA_HEADER: json.dumps(answer.metadata)} if answer.metadata else {}
    headers = {STATUS_HEADER: answer.status, SOURCE_HEADER: source, **metadata}
    return web.json_response(body, headers=headers)


def _failure(tool: str, error: ToolError, seconds: float) -> web.Response:
    status = STATUSES.get(error.kind, 502)
    more: Mapping[str, Any] = {}
    if tool == "crawl_page":
        failed = CrawlResponse(
            success=False, obs="", error_message=str(error), processing_time=round(seconds, 6)
        )
        more = failed.model_dump()
    return _error_response(error.kind, str(error), status, more)


def _error_response(
    kind: str, message: str, status: int, more: Mapping[str, Any] | None = None
) -> web.Response:
    body = {**(more or {}), "error": {"kind": kind, "message": message}}
    waits = {"Retry-After": str(RETRY_AFTER_S[status])} if status in RETRY_AFTER_S else {}
    return web.json_response(body, status=status, headers={STATUS_HEADER: "error", **waits})


async def _health(served: Served, _request: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "tools": list(served.answering.tools)})


async def _metrics(served: Served, _request: web.Request) -> web.Response:
    text, mime = served.metrics.exposition()
    return web.Response(body=text, headers={"Content-Type": mime})
