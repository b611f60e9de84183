"""What goes wrong on purpose."""

import asyncio
import datetime
import time
from collections import Counter
from typing import Any

from aiohttp import web

from tests.support.cluster.deletion import delete_pod
from tests.support.cluster.nodes import add_taint, remove_taint
from tests.support.cluster.scheduler import preempt
from tests.support.cluster.store import Object, Store, hidden


class Faults:
    """The state of every fault, and the requests that were counted."""

    def __init__(self) -> None:
        self.frozen_until = 0.0
        self.out_until = 0.0
        self.controllers_back = 0.0
        self.stale_until = 0.0
        self.requests: Counter[str] = Counter()
        self.log_streams: dict[int, web.Request] = {}
        self.watches: dict[int, bool] = {}
        """Open watches by the id of their request; true: stale, it stays silent for ever."""

    @property
    def is_paused(self) -> bool:
        """Controllers cannot work while the API does not: all they do goes through it."""
        return time.time() < max(self.frozen_until, self.out_until, self.controllers_back)

    async def gate(self, request: web.Request) -> bool:
        """Hold a request while the API is frozen; cut it while it is out, and say so."""
        await self.thawed()
        if time.time() >= self.out_until:
            return True
        abort(request)
        return False

    async def thawed(self) -> None:
        while time.time() < self.frozen_until:
            await asyncio.sleep(0.02)

    def freeze(self, seconds: float) -> None:
        self.frozen_until = time.time() + seconds

    def stop_controllers(self, seconds: float) -> None:
        """Let the API answer while nothing acts on what it holds, as an overloaded control plane does."""
        self.controllers_back = time.time() + seconds

    def outage(self, seconds: float, server: web.Server, own: Any) -> None:
        """Cut every connection but the one that asks for it, and every new one for a time."""
        self.out_until = time.time() + seconds
        for connection in list(server.connections):
            if connection.transport is not None and connection.transport is not own:
                connection.transport.abort()

    def stale(self, seconds: float) -> None:
        """Silence the watches that are open, and those that open in the next seconds."""
        self.stale_until = time.time() + seconds
        self.watches = dict.fromkeys(self.watches, True)

    def break_logs(self) -> int:
        """Cut the open log streams in the middle; says how many there were."""
        streams = list(self.log_streams.values())
        for request in streams:
            abort(request)
        return len(streams)


def abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def evict(store: Store, namespace: str, name: str, grace_s: int | None = None) -> Object:
    """What the eviction subresource does."""
    pod = store.get("pods", namespace, name)
    why = ("EvictionByEvictionAPI", "Eviction API: evicting")
    return delete_pod(store, pod, grace_s, disruption=why)


def preempt_pod(store: Store, namespace: str, name: str) -> None:
    preempt(store, store.get("pods", namespace, name), by="someone-of-higher-priority")


def age(store: Store, resource: str, namespace: str, name: str, seconds: float) -> None:
    """Make an object older than it is."""
    value = store.get(resource, namespace, name)
    created = datetime.datetime.fromisoformat(value["metadata"]["creationTimestamp"])
    earlier = created - datetime.timedelta(seconds=seconds)
    value["metadata"]["creationTimestamp"] = f"{earlier:%Y-%m-%dT%H:%M:%SZ}"
    store.put(resource, value)


def lose_node(store: Store, name: str) -> list[str]:
    """Cut a node off; returns the uids of its pods. Their processes go on, as behind a broken network."""
    node = store.get("nodes", "", name)
    hidden(node)["lost"] = time.time()
    store.put("nodes", node)
    return [
        pod["metadata"]["uid"] for pod in store.each("pods") if pod["spec"].get("nodeName") == name
    ]


def return_node(store: Store, name: str) -> None:
    node = store.get("nodes", "", name)
    hidden(node).pop("lost", None)
    store.put("nodes", node)


def taint_node(store: Store, name: str, key: str, effect: str) -> None:
    """Add a taint, or with an empty effect take it away."""
    node = store.get("nodes", "", name)
    if effect:
        add_taint(node, {"key": key, "effect": effect})
    else:
        remove_taint(node, key)
    store.put("nodes", node)
