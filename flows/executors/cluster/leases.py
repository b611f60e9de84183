"""Leases of a namespace as locks between runners: held while renewed, and taken over from one that is gone.

As client-go does it, a lease is stale when it has not changed for its duration on OUR clock: those of two runners may
differ. Who looks only once goes by the time written in it, with room for clocks that differ by minutes. Every change
names the version that it was made from, so of two that take the same lease one gets 409.
"""

import datetime
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flows.executors import ClusterError
from flows.executors.cluster.api import Api

LONG_DEAD = 10
"""Durations after which a lease is stale whatever the clocks say."""
POLL_S = 1.0
"""Between two looks at a lease that somebody holds [s]."""
CONFLICT = 409
RESERVED = "afm.dev/reserved-gpus"
"""Annotation: GPUs that the holder is about to take."""
MANAGED = {"app.kubernetes.io/managed-by": "afm"}

Object = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Held:
    """A lease of ours."""

    name: str
    value: Object
    """As the API has it."""
    renewed: float
    """When it was renewed [s, of our clock]."""


class Leases:
    """The leases of one namespace, as one runner sees them."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        duration_s: int,
        pause: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold leases for `duration_s` beyond each renewal."""
        self._api, self._pause, self._clock = api, pause, clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._duration_s = duration_s
        self._holder = uuid.uuid4().hex
        self._seen: dict[str, tuple[str, float]] = {}
        """By name: the version that was seen last, and since when."""
        self.held: dict[str, Held] = {}

    def try_acquire(self, name: str) -> bool:
        """Take a lease that nobody holds, or whose holder is known to be gone; tell whether it is ours now."""
        found = self._api.find(f"{self._path}/{name}")
        if found is None:
            return self._create(name)
        if not self._is_free(name, found):
            return False
        meta = {**found["metadata"], "annotations": {RESERVED: "0"}}
        return self._write(name, {**found, "metadata": meta, "spec": self._spec(found)})

    def acquire(self, name: str, waiting: Callable[[], None] = lambda: None) -> None:
        """Take a lease; while somebody holds it, wait as long as he renews it, and renew what is ours.

        Args:
            name: of the lease.
            waiting: called before each pause.
        """
        while not self.try_acquire(name):
            waiting()
            self._pause(min(POLL_S, self._duration_s / 4))
            self.renew()

    def renew(self) -> None:
        """Renew what is held where a third of its time has passed; what somebody took over is not held any more."""
        for one in [one for one in self.held.values() if self._is_due(one)]:
            self._renew(one)

    def reserve(self, name: str, gpus: int) -> None:
        """Note in a lease of ours how many GPUs its holder is about to take; nothing where it is not ours any more."""
        if name in self.held:
            self._renew(self.held[name], {RESERVED: str(gpus)})

    def release(self, name: str) -> None:
        """Give a lease back, for whoever waits; nothing where it is not ours any more."""
        held = self.held.pop(name, None)
        if held is None:
            return
        version = held.value["metadata"]["resourceVersion"]
        try:
            self._api.delete(f"{self._path}/{name}", preconditions={"resourceVersion": version})
        except ClusterError as error:
            if error.status != CONFLICT:
                raise

    def reserved(self) -> int:
        """Return how many GPUs others are about to take, as far as they may still be alive."""
        found = self._api.get(self._path, labelSelector=_selector(MANAGED))["items"]
        others = [one for one in found if not self._is_ours(one)]
        live = [one for one in others if not self._is_free(one["metadata"]["name"], one)]
        return sum(int((one["metadata"].get("annotations") or {}).get(RESERVED, 0)) for one in live)

    def _is_ours(self, found: Object) -> bool:
        return bool((found.get("spec") or {}).get("holderIdentity") == self._holder)

    def _is_free(self, name: str, found: Object) -> bool:
        """Tell whether it has not changed for its whole duration since we first saw it so, or for far longer."""
        spec = found.get("spec") or {}
        if not spec.get("holderIdentity") or self._is_ours(found):
            return True
        duration_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        if time.time() - _seconds(spec) > LONG_DEAD * duration_s:
            return True
        version, now = found["metadata"]["resourceVersion"], self._clock()
        seen, since = self._seen.setdefault(name, (version, now))
        if seen != version:
            self._seen[name] = (version, now)
            return False
        return now - since > duration_s

    def _is_due(self, one: Held) -> bool:
        return self._clock() - one.renewed > self._duration_s / 3

    def _renew(self, one: Held, annotations: dict[str, str] | None = None) -> bool:
        spec = {**one.value["spec"], "renewTime": _now()}
        meta = {**one.value["metadata"]}
        meta["annotations"] = {**(meta.get("annotations") or {}), **(annotations or {})}
        return self._write(one.name, {**one.value, "metadata": meta, "spec": spec})

    def _create(self, name: str) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "labels": dict(MANAGED)},
            "spec": self._spec({}),
        }
        return self._changed(name, lambda: self._api.create(self._path, body))

    def _write(self, name: str, value: Object) -> bool:
        return self._changed(name, lambda: self._api.replace(f"{self._path}/{name}", value))

    def _changed(self, name: str, change: Callable[[], Object]) -> bool:
        now = self._clock()  # of the request: when it was granted, nobody knows
        try:
            value = change()
        except ClusterError as error:
            if error.status not in (404, CONFLICT):
                raise
            return self._reread(name, now)
        self.held[name] = Held(name=name, value=value, renewed=now)
        return True

    def _reread(self, name: str, now: float) -> bool:
        """Somebody was quicker, or the answer to our own first try was lost."""
        found = self._api.find(f"{self._path}/{name}")
        if found is None or not self._is_ours(found):
            self.held.pop(name, None)
            return False
        self.held[name] = Held(name=name, value=found, renewed=now)
        return True

    def _spec(self, found: Object) -> Object:
        before = found.get("spec") or {}
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1,
        }


def _seconds(spec: Object) -> float:
    """Return when a lease was renewed by its holder's clock [s since 1970]."""
    stamp = str(spec.get("renewTime") or spec.get("acquireTime") or "1970-01-01T00:00:00Z")
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
