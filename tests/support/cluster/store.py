"""The objects, their history, and the file that outlives the program: one line of JSON per change.

The file alone is the state: a restart replays it, a line that was cut off by a kill is dropped. So a watch can resume
over a restart of the API as it can on a real cluster. `_double` in an object is the double's own memory of it; clients
never see it.
"""

import asyncio
import copy
import datetime
import json
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.errors import ApiError, not_found
from tests.support.cluster.resources import RESOURCES

Object = dict[str, Any]
Key = tuple[str, str, str]
HIDDEN = "_double"
HISTORY = 20_000
COMPACTED = "COMPACTED"


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch, before selectors."""

    version: int
    kind: str
    resource: str
    old: Object | None
    new: Object


class Store:
    """Objects by resource, namespace and name. Not thread-safe: it lives in one event loop."""

    def __init__(self, path: Path) -> None:
        self.version = 1
        self.floor = 0
        self.objects: dict[Key, Object] = {}
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self._pulse = asyncio.Event()
        if path.exists():
            self._replay(path)
        self._file = path.open("ab", buffering=0)

    def _replay(self, path: Path) -> None:
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                path.write_bytes(path.read_bytes().removesuffix(line))
                return
            row = json.loads(line)
            if row["kind"] == COMPACTED:
                self.version = self.floor = row["version"]
            else:
                self._apply(row["version"], row["kind"], row["resource"], row["object"])

    def _apply(self, version: int, kind: str, resource: str, value: Object) -> None:
        key = key_of(resource, value)
        old = self.objects.get(key)
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = value
        self.version = version
        if len(self.history) == HISTORY:
            self.floor = self.history[0].version
        self.history.append(Change(version, kind, resource, old, value))

    def _record(self, kind: str, resource: str, value: Object) -> None:
        version = self.version + 1
        value["metadata"]["resourceVersion"] = str(version)
        row = {"version": version, "kind": kind, "resource": resource, "object": value}
        self._file.write(json.dumps(row).encode() + b"\n")
        self._apply(version, kind, resource, value)
        self._wake()

    def _wake(self) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next change, or for the time to pass."""
        try:
            await asyncio.wait_for(self._pulse.wait(), timeout_s)
        except TimeoutError:
            return

    def find(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return a copy, or None."""
        return copy.deepcopy(self.objects.get((resource, namespace, name)))

    def get(self, resource: str, namespace: str, name: str) -> Object:
        found = self.find(resource, namespace, name)
        if found is None:
            raise not_found(RESOURCES[resource].qualified, name)
        return found

    def each(self, resource: str, namespace: str = "") -> Iterator[Object]:
        """Yield the objects themselves: to read, never to change."""
        for (kind, space, _), value in list(self.objects.items()):
            if kind == resource and namespace in ("", space):
                yield value

    def create(self, resource: str, value: Object) -> Object:
        meta = value["metadata"]
        if key_of(resource, value) in self.objects:
            name = RESOURCES[resource].qualified
            raise ApiError(409, f'{name} "{meta["name"]}" already exists', "AlreadyExists")
        value = copy.deepcopy(value)
        value["metadata"].setdefault("uid", str(uuid.uuid4()))
        value["metadata"]["creationTimestamp"] = rfc3339()
        value.setdefault(HIDDEN, {})["created"] = time.time()
        self._record("ADDED", resource, value)
        return copy.deepcopy(value)

    def put(self, resource: str, value: Object) -> Object:
        """Store a new state; the same state again is no change. An object that waits only for this is removed."""
        current = self.get(resource, *key_of(resource, value)[1:])
        meta = value["metadata"]
        if meta["uid"] != current["metadata"]["uid"]:
            raise ApiError(409, f"{meta['name']}: the object is another one now")
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and _is_gone(value):
            self._record("DELETED", resource, copy.deepcopy(value))
        elif _content(value) != _content(current):
            self._record("MODIFIED", resource, copy.deepcopy(value))
            value["metadata"]["resourceVersion"] = str(self.version)
        return value

    def remove(self, resource: str, value: Object) -> None:
        if key_of(resource, value) in self.objects:
            self._record("DELETED", resource, copy.deepcopy(value))

    def compact(self) -> None:
        """Forget the history: every watch, open or resumed from before now, gets 410."""
        self.version += 1
        self.floor = self.version
        row = {"kind": COMPACTED, "version": self.floor}
        self._file.write(json.dumps(row).encode() + b"\n")
        self._wake()

    def since(self, version: int) -> list[Change]:
        """Return the changes after a version, oldest first."""
        found: list[Change] = []
        for change in reversed(self.history):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    def close(self) -> None:
        self._file.close()


def key_of(resource: str, value: Object) -> Key:
    meta = value["metadata"]
    namespace = meta.get("namespace", "") if is_namespaced(resource) else ""
    return resource, namespace, meta["name"]


def is_namespaced(resource: str) -> bool:
    return resource in RESOURCES and RESOURCES[resource].namespaced


def hidden(value: Object) -> dict[str, Any]:
    """The double's own notes on an object."""
    notes: dict[str, Any] = value.setdefault(HIDDEN, {})
    return notes


def visible(value: Object) -> Object:
    return {key: part for key, part in value.items() if key != HIDDEN}


def rfc3339(moment: float | None = None) -> str:
    """A time as the API writes it, in whole seconds."""
    at = datetime.datetime.fromtimestamp(time.time() if moment is None else moment, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_gone(value: Object) -> bool:
    return value.get("kind") != "Pod" or bool(value.get(HIDDEN, {}).get("gone"))


def _content(value: Object) -> Object:
    meta = {key: part for key, part in value["metadata"].items() if key != "resourceVersion"}
    return {**value, "metadata": meta}
