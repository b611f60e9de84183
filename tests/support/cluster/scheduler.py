"""The scheduler: which node, which GPUs, who must make room."""

from decimal import Decimal
from typing import Any

from tests.support.cluster.conditions import condition, holds, set_condition
from tests.support.cluster.deletion import delete_pod
from tests.support.cluster.events import record_event, warn
from tests.support.cluster.quantities import GPU, Amounts, amounts, gpus, requests
from tests.support.cluster.store import Object, Store, hidden, key_of, rfc3339

BY = "default-scheduler"
TERMINAL = ("Succeeded", "Failed")


class Scheduler:
    """Binds pods to nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sync(self) -> None:
        waiting = [pod for pod in self._store.each("pods") if _waits(pod)]
        waiting.sort(key=lambda pod: (-pod["spec"].get("priority", 0), pod["_double"]["created"]))
        for pod in waiting:
            self._schedule(self._store.get(*key_of("pods", pod)))

    def _schedule(self, pod: Object) -> None:
        if why := self._unbound_claim(pod):
            self._refuse(pod, why)
            return
        nodes = list(self._store.each("nodes"))
        problems: dict[str, list[str]] = {}
        fitting: list[tuple[Decimal, str]] = []
        for node in nodes:
            name = node["metadata"]["name"]
            found = misfits(pod, node) or self._shortages(pod, node)
            problems[name] = found
            if not found:
                fitting.append((self._free(node).get("cpu", Decimal(0)), name))
        if fitting:
            self._bind(pod, max(fitting)[1])
        elif not self._preempt(pod, nodes):
            self._refuse(pod, _explain(problems))

    def _unbound_claim(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes") or []:
            if source := volume.get("persistentVolumeClaim"):
                name = source["claimName"]
                namespace = pod["metadata"]["namespace"]
                claim = self._store.find("persistentvolumeclaims", namespace, name)
                if claim is None:
                    return f'persistentvolumeclaim "{name}" not found'
                if claim["status"]["phase"] != "Bound":
                    return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    def _on(self, node: str) -> list[Object]:
        return [
            pod
            for pod in self._store.each("pods")
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] not in TERMINAL
        ]

    def _free(self, node: Object, without: frozenset[str] = frozenset()) -> Amounts:
        free = amounts(node["status"]["allocatable"])
        for pod in self._on(node["metadata"]["name"]):
            if pod["metadata"]["uid"] in without:
                continue
            for key, value in requests(pod).items():
                free[key] = free.get(key, Decimal(0)) - value
        return free

    def _shortages(
        self, pod: Object, node: Object, without: frozenset[str] = frozenset()
    ) -> list[str]:
        free = self._free(node, without)
        asked = requests(pod)
        short = [key for key, value in asked.items() if value > free.get(key, Decimal(0))]
        return [f"Insufficient {key}" for key in sorted(short)]

    def _bind(self, pod: Object, node: str) -> None:
        taken = {number for other in self._on(node) for number in hidden(other).get("gpus", [])}
        total = int(
            amounts(self._store.get("nodes", "", node)["status"]["allocatable"]).get(GPU, 0)
        )
        free = [number for number in range(total) if number not in taken]
        hidden(pod)["gpus"] = free[: gpus(pod)]
        pod["spec"]["nodeName"] = node
        pod["status"].pop("nominatedNodeName", None)
        pod["status"] |= {"hostIP": "127.0.0.1", "startTime": rfc3339()}
        set_condition(pod, "PodScheduled")
        self._store.put("pods", pod)
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        message = f"Successfully assigned {name} to {node}"
        record_event(self._store, pod, "Scheduled", message, by=BY)

    def _refuse(self, pod: Object, why: str) -> None:
        old = condition(pod, "PodScheduled")
        set_condition(pod, "PodScheduled", "False", "Unschedulable", why)
        self._store.put("pods", pod)
        if old is None or old.get("message") != why:
            warn(self._store, pod, "FailedScheduling", why, by=BY)

    def _preempt(self, pod: Object, nodes: list[Object]) -> bool:
        """Begin the end of lesser pods where that makes room; true while it does."""
        priority = pod["spec"].get("priority", 0)
        if priority <= 0 or pod["spec"].get("preemptionPolicy") == "Never":
            return False
        for node in nodes:
            if misfits(pod, node):
                continue
            lesser = [
                other
                for other in self._on(node["metadata"]["name"])
                if other["spec"].get("priority", 0) < priority
            ]
            victims = self._victims(pod, node, lesser)
            if victims is not None:
                self._evict(pod, victims)
                pod["status"]["nominatedNodeName"] = node["metadata"]["name"]
                self._store.put("pods", pod)
                return True
        return False

    def _victims(self, pod: Object, node: Object, lesser: list[Object]) -> list[Object] | None:
        lesser = sorted(lesser, key=lambda other: other["spec"].get("priority", 0))
        chosen: list[Object] = []
        for other in lesser:
            chosen.append(other)
            gone = frozenset(victim["metadata"]["uid"] for victim in chosen)
            if not self._shortages(pod, node, gone):
                return chosen
        return None

    def _evict(self, pod: Object, victims: list[Object]) -> None:
        for victim in victims:
            if victim["metadata"].get("deletionTimestamp"):
                continue
            fresh = self._store.get(*key_of("pods", victim))
            preempt(self._store, fresh, by=pod["metadata"]["uid"])


def preempt(store: Store, pod: Object, by: str) -> None:
    """End a pod as the scheduler does for one of higher priority."""
    message = f"Preempted by pod {by} on node {pod['spec'].get('nodeName')}"
    text = f"default-scheduler: preempting to accommodate a higher priority pod {by}"
    delete_pod(store, pod, disruption=("PreemptionByScheduler", text))
    record_event(store, pod, "Preempted", message, by=BY)


def misfits(pod: Object, node: Object) -> list[str]:
    """What keeps a pod from a node, however free it is."""
    labels = node["metadata"].get("labels") or {}
    spec = pod["spec"]
    wanted = spec.get("nodeSelector") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (required or {}).get("nodeSelectorTerms")
    selected = all(labels.get(key) == value for key, value in wanted.items())
    if not selected or (terms is not None and not any(_term(term, labels) for term in terms)):
        return ["node(s) didn't match Pod's node affinity/selector"]
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return [
                f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
            ]
    if not holds(node, "Ready"):
        return ["node(s) were not ready"]
    if spec.get("schedulingGates"):
        return ["Scheduling is blocked due to non-empty scheduling gates"]
    return []


def tolerates(pod: Object, taint: dict[str, Any]) -> bool:
    return toleration_of(pod, taint) is not None


def toleration_of(pod: Object, taint: dict[str, Any]) -> dict[str, Any] | None:
    for row in pod["spec"].get("tolerations") or []:
        same_effect = row.get("effect") in (None, "", taint["effect"])
        exists = row.get("operator", "Equal") == "Exists"
        same_key = row.get("key") == taint["key"] or (exists and not row.get("key"))
        same_value = exists or row.get("value", "") == taint.get("value", "")
        if same_effect and same_key and same_value:
            return dict(row)
    return None


def _term(term: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(_expression(row, labels) for row in term.get("matchExpressions") or [])


def _expression(row: dict[str, Any], labels: dict[str, str]) -> bool:
    value, operator = labels.get(row["key"]), row["operator"]
    if operator in ("In", "NotIn"):
        return bool((value in row["values"]) == (operator == "In"))
    assert operator in ("Exists", "DoesNotExist"), operator
    return bool((value is not None) == (operator == "Exists"))


def _waits(pod: Object) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and pod["status"]["phase"] == "Pending"
        and not pod["metadata"].get("deletionTimestamp")
    )


def _explain(problems: dict[str, list[str]]) -> str:
    """Word it as the scheduler does: how many nodes for each reason."""
    counts: dict[str, int] = {}
    for found in problems.values():
        for text in found:
            counts[text] = counts.get(text, 0) + 1
    total = len(problems)
    reasons = ", ".join(f"{count} {text}" for text, count in sorted(counts.items()))
    help_text = f"{total} Preemption is not helpful for scheduling"
    return f"0/{total} nodes are available: {reasons}. preemption: 0/{total} nodes are available: {help_text}."
