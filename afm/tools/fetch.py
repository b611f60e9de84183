"""Fetching one document of the web: robots.txt, redirects one by one, limits, and no private address."""

import asyncio
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afm.errors import ToolError
from afm.params.backends import WebParams
from afm.retrying import RETRIED_STATUSES, with_retries
from afm.tools.addresses import guarded_socket, is_public, was_refused
from afm.tools.http import (
    BackendFailure,
    Pressure,
    connection_failure,
    read_limited,
    status_failure,
)

MISSING = "No such page."
NO_ADDRESS = "This is no web address: it must start with http:// or https://."
PRIVATE = "This address may not be read: it is not part of the public web."
NO_HOST = "This page could not be read: there is no such host."
TOO_MANY_REDIRECTS = "This page could not be read: it redirects too often."
TOO_LARGE = "This page could not be read: it is too large."
ROBOTS = "This page may not be read: its site's robots.txt does not allow it."
REFUSED = "This page could not be read: its server answered with status {status}."

_HOST = re.compile(r"[\w.:%-]+", re.ASCII)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_ROBOTS_BYTES = 512 * 1024
_MAX_ROBOTS = 4096
_ROBOTS_S = 3600.0
"""A site's rules are read anew after this [s]."""
_MAX_URL_CHARS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """What a server sent."""

    url: str
    """Where it was in the end."""
    mime: str
    """As the server says, in lower case; empty where it does not."""
    charset: str | None
    body: bytes


class NotReadable(Exception):
    """A fact about an address that is no fault of ours or of the network: there is nothing to read."""


class PageFetcher:
    """Fetches pages; belongs to the event loop that uses it first."""

    def __init__(self, params: WebParams, origins: Mapping[str, str]) -> None:
        """Connect lazily.

        Args:
            params: Section `tools.web`.
            origins: Host -> `http://address:port` where its pages are served, for the embedded site.
        """
        self._params = params
        self._origins = origins
        self._sessions: dict[bool, Any] = {}
        self._robots: dict[str, tuple[float, asyncio.Task[Any]]] = {}
        self._pressure = Pressure(
            requests_per_s=params.requests_per_s,
            concurrency=params.concurrency,
            max_wait_s=params.timeout_s,
        )

    async def fetch(self, address: str) -> Document:
        """Fetch a document, following redirects.

        Raises:
            NotReadable: no such page, no public address, too large, or not allowed; its text is for the agent.
            ToolError: the network or the server failed.
        """
        url = _parsed(address)
        for _ in range(self._params.max_redirects + 1):
            await self._require_allowed(url)
            status, headers, body = await self._get(url, self._params.max_page_bytes)
            if status not in _REDIRECTS or "Location" not in headers:
                return _document(url, status, headers, body)
            url = _parsed(str(url.join(type(url)(headers["Location"]))))
        raise NotReadable(TOO_MANY_REDIRECTS)

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()

    async def _require_allowed(self, url: Any) -> None:
        if not self._params.obey_robots:
            return
        origin, now = str(url.origin()), asyncio.get_running_loop().time()
        if now - self._robots.get(origin, (-_ROBOTS_S, None))[0] >= _ROBOTS_S:
            if len(self._robots) >= _MAX_ROBOTS:
                self._robots.clear()
            self._robots[origin] = (now, asyncio.ensure_future(self._read_robots(url.origin())))
        try:
            rules = await asyncio.shield(self._robots[origin][1])
        except (ToolError, NotReadable):
            self._robots.pop(origin, None)  # a failure is not remembered
            raise
        if not rules.can_fetch(str(url), self._params.user_agent):
            raise NotReadable(ROBOTS)

    async def _read_robots(self, origin: Any) -> Any:
        """Read a site's rules (RFC 9309): no file allows everything, a server that fails allows nothing yet."""
        from protego import Protego

        url = origin.with_path("/robots.txt")
        for _ in range(self._params.max_redirects + 1):
            status, headers, body = await self._get(url, _MAX_ROBOTS_BYTES)
            if status not in _REDIRECTS or "Location" not in headers:
                text = body.decode("utf-8", errors="replace") if status == 200 else ""
                return Protego.parse(text)
            url = _parsed(str(url.join(type(url)(headers["Location"]))))
        return Protego.parse("")

    async def _get(self, url: Any, max_bytes: int) -> tuple[int, Mapping[str, str], bytes]:
        try:
            return await with_retries(
                lambda: self._try(url, max_bytes), max_tries=self._params.max_tries
            )
        except BackendFailure as failure:
            raise ToolError(f"{url}: {failure}", kind=failure.kind) from failure

    async def _try(self, url: Any, max_bytes: int) -> tuple[int, Mapping[str, str], bytes]:
        import aiohttp

        target, session = self._way(url)
        sent = {"Host": url.authority} if target is not url else {}
        async with self._pressure:
            try:
                async with session.get(target, headers=sent, allow_redirects=False) as response:
                    body = await _body(response, max_bytes)
            except TimeoutError as error:
                why = f"no answer within {self._params.timeout_s:g} s"
                raise BackendFailure(why, kind="timeout") from error
            except (aiohttp.ClientError, ValueError) as error:
                raise await self._explained(error) from error
        if response.status in RETRIED_STATUSES:
            failure = status_failure(response.status, response.headers.get("Retry-After"), b"")
            assert isinstance(failure, BackendFailure)
            raise failure
        return response.status, response.headers, body

    async def _explained(self, error: Exception) -> Exception:
        """Tell facts about an address from failures of the network."""
        import aiohttp

        if was_refused(error):
            return NotReadable(PRIVATE)
        if _is_unknown_name(error) and await self._resolves_names():
            return NotReadable(NO_HOST)
        if isinstance(error, aiohttp.ClientConnectionError):
            return connection_failure(error)
        return BackendFailure(f"broken answer: {error}", kind="broken_answer")

    async def _resolves_names(self) -> bool:
        try:
            await asyncio.get_running_loop().getaddrinfo(self._params.known_host, 443)
        except OSError:
            return False
        return True

    def _way(self, url: Any) -> tuple[Any, Any]:
        """Return what to connect to, and by which session; only hosts of `private_hosts` by the unguarded one."""
        is_private = url.host in self._params.private_hosts
        if not is_private and _is_private_literal(url.host):
            raise NotReadable(PRIVATE)
        origin = self._origins.get(url.host) if is_private else None
        target = type(url)(origin).join(url.relative()) if origin else url
        return target, self._session(guarded=not is_private)

    def _session(self, *, guarded: bool) -> Any:
        import aiohttp

        if guarded not in self._sessions:
            self._sessions[guarded] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._params.concurrency,
                    socket_factory=guarded_socket if guarded else None,
                ),
                timeout=aiohttp.ClientTimeout(total=self._params.timeout_s),
                headers={"User-Agent": self._params.user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._sessions[guarded]


async def _body(response: Any, max_bytes: int) -> bytes:
    if response.status in _REDIRECTS:
        return b""
    declared = response.headers.get("Content-Length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise NotReadable(TOO_LARGE)
    try:
        return await read_limited(response, max_bytes)
    except ToolError as error:
        raise NotReadable(TOO_LARGE) from error


def _parsed(address: str) -> Any:
    from yarl import URL

    try:
        url = URL(address)
        is_web = url.scheme in ("http", "https") and url.user is None
        is_web = is_web and _HOST.fullmatch(url.raw_host or "") is not None
    except ValueError as error:
        raise NotReadable(NO_ADDRESS) from error
    if not is_web or len(address) > _MAX_URL_CHARS:
        raise NotReadable(NO_ADDRESS)
    return url.with_fragment(None)


def _is_unknown_name(error: Exception) -> bool:
    below = getattr(error, "os_error", None)
    unknown = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
    return isinstance(below, socket.gaierror) and below.errno in unknown


def _is_private_literal(host: str) -> bool:
    """Tell whether a host is itself an address that is not public; aiohttp resolves no such host."""
    is_literal = ":" in host or host.replace(".", "").isdigit()
    return host.rstrip(".") == "localhost" or (is_literal and not is_public(host))


def _document(url: Any, status: int, headers: Mapping[str, str], body: bytes) -> Document:
    from aiohttp.helpers import parse_mimetype

    if status in (404, 410):
        raise NotReadable(MISSING)
    if status != 200:
        raise NotReadable(REFUSED.format(status=status))
    if not body:
        raise ToolError(f"{url}: status 200 without a body", kind="broken_answer")
    mime = parse_mimetype(headers.get("Content-Type", ""))
    return Document(
        url=str(url),
        mime=f"{mime.type}/{mime.subtype}".strip("/").lower(),
        charset=mime.parameters.get("charset"),
        body=body,
    )
