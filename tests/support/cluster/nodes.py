"""Nodes: their heartbeat, what happens when it stops, and NoExecute taints."""

import time
from typing import Any

from tests.support.cluster.conditions import holds, set_condition
from tests.support.cluster.config import Config, Node
from tests.support.cluster.deletion import delete_pod
from tests.support.cluster.events import record_event
from tests.support.cluster.quantities import GPU
from tests.support.cluster.scheduler import toleration_of
from tests.support.cluster.store import Object, Store, hidden, key_of, rfc3339

MONITOR_GRACE_S = 56.0
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
DEFAULT_TOLERATION_S = 300
TERMINAL = ("Succeeded", "Failed")


def node_object(node: Node) -> Object:
    capacity = {
        "cpu": node.cpu,
        "memory": node.memory,
        "ephemeral-storage": node.ephemeral_storage,
        "pods": "110",
    }
    if node.gpus:
        capacity[GPU] = str(node.gpus)
    value: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {"kubernetes.io/hostname": node.name, **node.labels},
        },
        "spec": {"taints": [dict(taint) for taint in node.taints]},
        "status": {"capacity": capacity, "allocatable": dict(capacity)},
    }
    set_condition(value, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
    return value


class NodeController:
    """Marks lost nodes and evicts from tainted ones."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._scale = config.time_scale

    def sync(self) -> None:
        for node in list(self._store.each("nodes")):
            fresh = self._store.get("nodes", "", node["metadata"]["name"])
            self._watch_heartbeat(fresh)
            self._store.put("nodes", fresh)
            self._evict(fresh)

    def _watch_heartbeat(self, node: Object) -> None:
        lost = hidden(node).get("lost")
        if lost is None:
            if not holds(node, "Ready"):
                set_condition(
                    node, "Ready", "True", "KubeletReady", "kubelet is posting ready status"
                )
                remove_taint(node, UNREACHABLE)
        elif time.time() >= lost + MONITOR_GRACE_S * self._scale and holds(node, "Ready"):
            text = "Kubelet stopped posting node status."
            set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", text)
            add_taint(node, {"key": UNREACHABLE, "effect": "NoExecute"})
            record_event(self._store, node, "NodeNotReady", "Node status is now: NodeNotReady")
            for pod in self._pods(node):
                set_condition(pod, "Ready", "False", "NodeLost")
                self._store.put("pods", pod)

    def _pods(self, node: Object) -> list[Object]:
        name = node["metadata"]["name"]
        keys = [
            key_of("pods", pod)
            for pod in self._store.each("pods")
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in TERMINAL
        ]
        return [self._store.get(*key) for key in keys]

    def _evict(self, node: Object) -> None:
        taints = [t for t in node["spec"].get("taints") or [] if t["effect"] == "NoExecute"]
        for taint in taints:
            since = hidden(node).get("taints", {}).get(taint["key"], time.time())
            hidden(node).setdefault("taints", {})[taint["key"]] = since
            for pod in self._pods(node):
                if time.time() >= since + self._tolerated_s(pod, taint):
                    self._evict_pod(pod)
        if "taints" in hidden(node):
            keys = {taint["key"] for taint in taints}
            kept = {key: at for key, at in hidden(node)["taints"].items() if key in keys}
            hidden(node)["taints"] = kept
            self._store.put("nodes", node)

    def _tolerated_s(self, pod: Object, taint: dict[str, Any]) -> float:
        row = toleration_of(pod, taint)
        if row is None:
            is_default = taint["key"] in (UNREACHABLE, NOT_READY)
            return DEFAULT_TOLERATION_S * self._scale if is_default else 0.0
        limit_s = row.get("tolerationSeconds")
        return float("inf") if limit_s is None else float(limit_s) * self._scale

    def _evict_pod(self, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            return
        why = "Taint manager: deleting due to NoExecute taint"
        delete_pod(self._store, pod, disruption=("DeletionByTaintManager", why))
        text = f"Marking for deletion Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        record_event(self._store, pod, "TaintManagerEviction", text, by="taint-eviction-controller")


def add_taint(node: Object, taint: dict[str, Any]) -> None:
    remove_taint(node, taint["key"])
    node["spec"].setdefault("taints", []).append({**taint, "timeAdded": rfc3339()})


def remove_taint(node: Object, key: str) -> None:
    taints = node["spec"].get("taints") or []
    node["spec"]["taints"] = [taint for taint in taints if taint["key"] != key]


def bind_claims(store: Store, time_scale: float) -> None:
    """Bind claims to volumes: at once where the volume names the claim, else only after the binder's slow round."""
    for claim in list(store.each("persistentvolumeclaims")):
        if claim["status"]["phase"] == "Bound":
            continue
        fresh = store.get(*key_of("persistentvolumeclaims", claim))
        age_s = time.time() - hidden(fresh)["created"]
        for volume in list(store.each("persistentvolumes")):
            named = _is_named(volume, fresh)
            if named or (age_s >= SLOW_BIND_S * time_scale and _fits(volume, fresh)):
                _bind(store, volume, fresh)
                break


SLOW_BIND_S = 12.0


def _is_named(volume: Object, claim: Object) -> bool:
    reference = volume["spec"].get("claimRef") or {}
    return all(reference.get(key) == claim["metadata"][key] for key in ("namespace", "name"))


def _fits(volume: Object, claim: Object) -> bool:
    one, other = volume["spec"], claim["spec"]
    return (
        not one.get("claimRef")
        and set(other.get("accessModes", [])) <= set(one.get("accessModes", []))
        and one.get("storageClassName", "") == other.get("storageClassName", "")
    )


def _bind(store: Store, volume: Object, claim: Object) -> None:
    fresh = store.get("persistentvolumes", "", volume["metadata"]["name"])
    meta = claim["metadata"]
    fresh["spec"]["claimRef"] = {key: meta[key] for key in ("namespace", "name", "uid")}
    fresh["status"] = {"phase": "Bound"}
    store.put("persistentvolumes", fresh)
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["status"] = {
        "phase": "Bound",
        "accessModes": volume["spec"].get("accessModes", []),
        "capacity": volume["spec"].get("capacity", {}),
    }
    store.put("persistentvolumeclaims", claim)
