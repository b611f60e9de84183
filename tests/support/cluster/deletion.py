"""How objects go: grace periods, finalizers, and what happens to those who depend on them."""

import time
from typing import Any

from tests.support.cluster.conditions import set_condition
from tests.support.cluster.errors import ApiError
from tests.support.cluster.store import Object, Store, hidden, key_of, rfc3339

FOREGROUND = "foregroundDeletion"
TRACKING = "batch.kubernetes.io/job-tracking"
POLICIES = ("Orphan", "Background", "Foreground")
GRACE_S = 30


def delete(store: Store, resource: str, value: Object, options: dict[str, Any]) -> Object:
    """Delete on a client's behalf; returns the object as it is afterwards.

    Raises:
        ApiError: 409, a precondition does not hold; 422, an unknown propagation policy.
    """
    _check_preconditions(value, options.get("preconditions") or {})
    if resource == "pods":
        return delete_pod(store, value, options.get("gracePeriodSeconds"))
    if resource == "jobs":
        return _delete_job(store, value, options)
    if resource == "namespaces":
        value["status"] = {"phase": "Terminating"}
    if value["metadata"].get("finalizers") or resource == "namespaces":
        value["metadata"].setdefault("deletionTimestamp", rfc3339())
        if resource == "namespaces":
            value["metadata"]["finalizers"] = ["kubernetes"]
        return store.put(resource, value)
    store.remove(resource, value)
    return value


def _check_preconditions(value: Object, wanted: dict[str, str]) -> None:
    for key, expected in wanted.items():
        if expected and value["metadata"].get(key) != expected:
            name = value["metadata"]["name"]
            raise ApiError(409, f"Precondition failed: {key} of {name} is not {expected}")


def _delete_job(store: Store, job: Object, options: dict[str, Any]) -> Object:
    policy = options.get("propagationPolicy")
    if policy is None:  # the API's own default for batch/v1, whatever kubectl's is
        policy = "Background" if options.get("orphanDependents") is False else "Orphan"
    if policy not in POLICIES:
        raise ApiError(422, f"propagationPolicy: Unsupported value: {policy!r}: {POLICIES}")
    if policy == "Foreground":
        meta = job["metadata"]
        meta.setdefault("deletionTimestamp", rfc3339())
        meta["finalizers"] = sorted({*meta.get("finalizers", []), FOREGROUND})
        return store.put("jobs", job)
    if policy == "Orphan":
        for pod in pods_of(store, job):
            release(pod)
            pod["metadata"].pop("ownerReferences")
            store.put("pods", pod)
    store.remove("jobs", job)
    return job


def delete_pod(
    store: Store,
    pod: Object,
    grace_s: int | None = None,
    *,
    disruption: tuple[str, str] | None = None,
) -> Object:
    """Begin a pod's end; its kubelet does the rest.

    Args:
        grace_s: by default the pod's own.
        disruption: reason and message of the DisruptionTarget condition.
    """
    if disruption is not None:
        set_condition(pod, "DisruptionTarget", "True", *disruption)
    if grace_s is None:
        grace_s = int(pod["spec"].get("terminationGracePeriodSeconds", GRACE_S))
    phase = pod.get("status", {}).get("phase", "Pending")
    if not pod["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
        grace_s = 0
    meta = pod["metadata"]
    known = meta.get("deletionGracePeriodSeconds")
    if known is None or grace_s < known:
        meta["deletionTimestamp"] = rfc3339(time.time() + grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
        hidden(pod).setdefault("deleted", time.time())
    if grace_s == 0:
        hidden(pod)["gone"] = True
    return store.put("pods", pod)


def release(pod: Object) -> None:
    """Let the job controller's hold on a pod go."""
    held = pod["metadata"].get("finalizers") or []
    pod["metadata"]["finalizers"] = [name for name in held if name != TRACKING]


def pods_of(store: Store, job: Object) -> list[Object]:
    """Return copies of the pods that a Job controls, oldest first."""
    _, namespace, _ = key_of("jobs", job)
    uid = job["metadata"]["uid"]
    keys = [
        (pod["metadata"]["namespace"], pod["metadata"]["name"])
        for pod in store.each("pods", namespace)
        if owner_uid(pod) == uid
    ]
    return [store.get("pods", *key) for key in keys]


def owner_uid(value: Object) -> str | None:
    for owner in value["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def collect(store: Store) -> None:
    """Do the garbage collector's round: dependents of what is gone, foreground deletions, namespaces."""
    uids = {job["metadata"]["uid"]: job for job in store.each("jobs")}
    for pod in list(store.each("pods")):
        uid = owner_uid(pod)
        if uid is None:
            continue
        owner = uids.get(uid)
        if owner is None or owner["metadata"].get("deletionTimestamp"):
            fresh = store.get(*key_of("pods", pod))
            release(fresh)
            fresh = store.put("pods", fresh)
            if store.find(*key_of("pods", pod)):
                delete_pod(store, fresh)
    _collect_services(store, uids)
    _finish_foreground(store)
    _finish_namespaces(store)


def _collect_services(store: Store, uids: dict[str, Object]) -> None:
    """Remove the Services all of whose owners are gone; here only Jobs own any."""
    for service in list(store.each("services")):
        owners = service["metadata"].get("ownerReferences") or []
        if owners and not any(owner["uid"] in uids for owner in owners):
            store.remove("services", service)


def _finish_foreground(store: Store) -> None:
    for job in list(store.each("jobs")):
        finalizers = job["metadata"].get("finalizers") or []
        if FOREGROUND in finalizers and not pods_of(store, job):
            fresh = store.get(*key_of("jobs", job))
            fresh["metadata"]["finalizers"] = [name for name in finalizers if name != FOREGROUND]
            store.put("jobs", fresh)


def _finish_namespaces(store: Store) -> None:
    for space in list(store.each("namespaces")):
        if not space["metadata"].get("deletionTimestamp"):
            continue
        inside = [
            key
            for key in store.objects
            if key[1] == space["metadata"]["name"] and not key[0].startswith("_")
        ]
        for resource, namespace, name in inside:
            value = store.find(resource, namespace, name)
            if value is not None and not value["metadata"].get("deletionTimestamp"):
                delete(store, resource, value, {"propagationPolicy": "Background"})
        if not inside:
            fresh = store.get("namespaces", "", space["metadata"]["name"])
            fresh["metadata"]["finalizers"] = []
            store.put("namespaces", fresh)
