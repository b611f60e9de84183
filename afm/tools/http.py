"""Asking one HTTP backend: a token bucket, few requests at once, retries, and a typed error for everything else."""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from afm.errors import ToolError, UserError
from afm.params.backends import EndpointParams, HttpParams
from afm.retrying import RETRIED_STATUSES, PassingFailure, retry_after_s, with_retries

_QUOTED_CHARS = 200
_BLOCK_BYTES = 65536


class BackendFailure(PassingFailure):
    """A try that failed, with the kind of error it is when no other try succeeds."""

    def __init__(self, message: str, *, kind: str, wait_s: float | None = None) -> None:
        """Take `kind` from `afm.tools.base.ERROR_KINDS`."""
        super().__init__(message, wait_s=wait_s)
        self.kind = kind


class Pressure:
    """How hard a backend may be pressed: a token bucket, a number of requests in flight, and pauses it asked for."""

    def __init__(self, *, requests_per_s: float, concurrency: int, max_wait_s: float) -> None:
        """Start with a full bucket of one second's requests, at least one.

        Args:
            requests_per_s: What flows into the bucket.
            concurrency: Requests in flight.
            max_wait_s: Longest pause that a request waits for; where it is longer, the request fails at once [s].
        """
        from aiolimiter import AsyncLimiter

        size = max(requests_per_s, 1.0)
        self._bucket = AsyncLimiter(size, size / requests_per_s)
        self._slots = asyncio.Semaphore(concurrency)
        self._paused_until = 0.0
        self._max_wait_s = max_wait_s

    def pause(self, wait_s: float | None) -> None:
        """Let no request start before `wait_s` have passed: what a Retry-After header asks for."""
        if wait_s is not None:
            now = asyncio.get_running_loop().time()
            self._paused_until = max(self._paused_until, now + wait_s)

    async def __aenter__(self) -> None:
        """Wait for a slot, the end of a pause, and a token; raises `ToolError` where the pause is too long."""
        await self._slots.acquire()
        try:
            while (left := self._paused_until - asyncio.get_running_loop().time()) > 0:
                if left > self._max_wait_s:
                    why = f"the backend asked for a pause, {left:.1f} s of it are left"
                    raise ToolError(why, kind="rate_limited")
                await asyncio.sleep(left)
            await self._bucket.acquire()
        except BaseException:
            self._slots.release()
            raise

    async def __aexit__(self, *_error: object) -> None:
        """Give the slot back."""
        self._slots.release()


class HttpBackend:
    """A client of one backend; belongs to the event loop that uses it first."""

    def __init__(self, name: str, endpoint: EndpointParams, http: HttpParams) -> None:
        """Connect lazily.

        Raises:
            UserError: the key's environment variable is not set.
        """
        self.name = name
        self._endpoint = endpoint
        self._http = http
        self._key = key_of(endpoint.api_key_variable, endpoint.url)
        self._session: Any = None
        self._pressure = Pressure(
            requests_per_s=endpoint.requests_per_s,
            concurrency=http.concurrency,
            max_wait_s=http.timeout_s,
        )

    async def post(self, body: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """Send a JSON body; returns the JSON answer and its headers.

        Raises:
            ToolError: no such answer after the last try.
        """
        try:
            return await with_retries(lambda: self._try(body), max_tries=self._http.max_tries)
        except BackendFailure as failure:
            message = f"{self.name} ({self._endpoint.url}): {failure}"
            raise ToolError(message, kind=failure.kind) from failure

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _try(self, body: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        import aiohttp

        async with self._pressure:
            try:
                # A redirect would take the key along.
                async with self._open().post(
                    self._endpoint.url, json=body, allow_redirects=False
                ) as response:
                    raw = await read_limited(response, self._http.max_answer_bytes)
            except TimeoutError as error:
                why = f"no answer within {self._http.timeout_s:g} s"
                raise BackendFailure(why, kind="timeout") from error
            except aiohttp.ClientConnectionError as error:
                raise connection_failure(error) from error
            except (aiohttp.ClientError, ValueError) as error:
                raise BackendFailure(
                    f"broken answer: {type(error).__name__}: {error}", kind="broken_answer"
                ) from error
        self._require_ok(response, raw)
        return parse_json(raw), response.headers

    def _open(self) -> Any:
        import aiohttp

        if self._session is None:
            key = self._key
            sent = {"X-API-KEY": key, "Authorization": f"Bearer {key}"} if key else {}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._http.concurrency),
                timeout=aiohttp.ClientTimeout(total=self._http.timeout_s),
                headers=sent,
            )
        return self._session

    def _require_ok(self, response: Any, raw: bytes) -> None:
        if response.status == 200:
            return
        failure = status_failure(response.status, response.headers.get("Retry-After"), raw)
        if isinstance(failure, BackendFailure):
            self._pressure.pause(failure.wait_s)
            if (failure.wait_s or 0.0) <= self._http.timeout_s:
                raise failure
            raise ToolError(f"{self.name} ({self._endpoint.url}): {failure}", kind=failure.kind)
        raise ToolError(f"{self.name} ({self._endpoint.url}): {failure}", kind="refused")


def status_failure(status: int, retry_after: str | None, raw: bytes) -> BackendFailure | str:
    """Return what a status other than 200 means: a failure that may pass, or why it does not."""
    message = f"status {status}: {raw[:_QUOTED_CHARS].decode(errors='replace')}"
    if status not in RETRIED_STATUSES:
        return message
    kind = "rate_limited" if status == 429 else "unavailable"
    return BackendFailure(message, kind=kind, wait_s=retry_after_s(retry_after))


def connection_failure(error: Exception) -> BackendFailure:
    """Tell a server that is not there from one that hung up in the middle."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError):
        return BackendFailure(f"cannot connect: {error}", kind="unavailable")
    return BackendFailure(f"cut off: {type(error).__name__}: {error}", kind="broken_answer")


async def read_limited(response: Any, max_bytes: int) -> bytes:
    """Read a body to its end.

    Raises:
        ToolError: it is longer than `max_bytes`; kind `too_large`.
    """
    blocks, size = [], 0
    async for block in response.content.iter_chunked(_BLOCK_BYTES):
        size += len(block)
        if size > max_bytes:
            raise ToolError(f"{response.url}: more than {max_bytes} bytes", kind="too_large")
        blocks.append(block)
    return b"".join(blocks)


def parse_json(raw: bytes) -> Any:
    """Parse a body that must be JSON and nothing else; a code fence around it is not.

    Raises:
        BackendFailure: it is something else; kind `broken_answer`.
    """
    try:
        return json.loads(raw)
    except ValueError as error:
        start = raw[:_QUOTED_CHARS].decode(errors="replace")
        raise BackendFailure(f"not JSON: {start!r}", kind="broken_answer") from error


def key_of(variable: str | None, url: str) -> str | None:
    """Return the key that an environment variable holds; None where none is named.

    Raises:
        UserError: the variable is not set.
    """
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UserError(
            f"environment variable {variable} is not set; it must hold the key for {url}"
        )
    return key
