"""Watches: from a version on, until the client, the time or a fault ends them."""

import json
import time
from collections.abc import Iterator

from aiohttp import web

from tests.support.cluster.errors import ApiError
from tests.support.cluster.faults import Faults
from tests.support.cluster.matching import Test
from tests.support.cluster.resources import Resource
from tests.support.cluster.store import Change, Object, Store, visible

DEFAULT_S = 1800.0
BOOKMARK_S = 60.0
POLL_S = 1.0


class Watcher:
    """One watch request."""

    def __init__(
        self, store: Store, faults: Faults, resource: Resource, namespace: str, test: Test
    ) -> None:
        self._store = store
        self._faults = faults
        self._resource = resource
        self._namespace = namespace
        self._test = test

    async def serve(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        opened = time.time()
        until = opened + float(query.get("timeoutSeconds") or DEFAULT_S)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._faults.watches[id(request)] = opened < self._faults.stale_until
        try:
            await response.prepare(request)
            version = query.get("resourceVersion", "")
            at = int(version) if version not in ("", "0") else None
            await self._follow(request, response, at, opened, until)
        except ConnectionResetError:
            return response  # the client has left
        finally:
            self._faults.watches.pop(id(request), None)
        return response

    async def _follow(
        self,
        request: web.Request,
        response: web.StreamResponse,
        at: int | None,
        opened: float,
        until: float,
    ) -> None:
        if at is None:
            at = self._store.version
            for value in self._store.each(self._resource.plural, self._namespace):
                if self._test(value):
                    await _send(response, "ADDED", visible(value))
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        bookmark_at = opened + BOOKMARK_S
        while (now := time.time()) < until:
            await self._faults.thawed()
            if self._faults.watches.get(id(request)):
                await self._store.changed(min(POLL_S, until - now))
                continue
            if at < self._store.floor:
                await _send(response, "ERROR", expired(at, self._store.floor).body())
                return
            changes = self._store.since(at)
            for kind, value in self._events(changes):
                await _send(response, kind, value)
            at = self._store.version
            if bookmarks and now >= bookmark_at:
                bookmark_at = now + BOOKMARK_S
                await _send(response, "BOOKMARK", self._bookmark(at))
            await self._store.changed(max(min(POLL_S, until - now), 0.001))
        if bookmarks and not self._faults.watches.get(id(request)):
            await _send(response, "BOOKMARK", self._bookmark(at))

    def _events(self, changes: list[Change]) -> Iterator[tuple[str, Object]]:
        for change in changes:
            if change.resource != self._resource.plural:
                continue
            if self._namespace not in ("", change.new["metadata"].get("namespace")):
                continue
            before = change.old is not None and self._test(change.old)
            after = change.kind != "DELETED" and self._test(change.new)
            if before or after:
                kind = ("MODIFIED" if before else "ADDED") if after else "DELETED"
                yield kind, visible(change.new)

    def _bookmark(self, version: int) -> Object:
        return {
            "kind": self._resource.kind,
            "apiVersion": self._resource.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        }


def expired(version: int, floor: int) -> ApiError:
    return ApiError(410, f"too old resource version: {version} ({floor})")


async def _send(response: web.StreamResponse, kind: str, value: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": value}).encode() + b"\n")
