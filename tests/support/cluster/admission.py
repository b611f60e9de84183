"""What stands between an accepted request and a stored pod: Pod Security, priority, service account, quota."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.support.cluster.errors import ApiError
from tests.support.cluster.quantities import Amounts, amounts, limits, requests, text
from tests.support.cluster.store import Object, Store

ENFORCE = "pod-security.kubernetes.io/enforce"
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
COUNTED = {"jobs": "count/jobs.batch", "persistentvolumeclaims": "persistentvolumeclaims"}


def admit_pod(store: Store, pod: Object) -> None:
    """Complete a pod, or refuse it.

    Raises:
        ApiError: 403, with the words of the plugin that refuses.
    """
    name = pod["metadata"]["name"]
    namespace = pod["metadata"]["namespace"]
    _admit_account(store, pod, namespace)
    _admit_priority(store, pod)
    space = store.get("namespaces", "", namespace)
    if (space["metadata"].get("labels") or {}).get(ENFORCE) == "restricted":
        violations = list(restricted_violations(pod["spec"]))
        if violations:
            raise _forbidden(
                name, f'violates PodSecurity "restricted:latest": {", ".join(violations)}'
            )
    for quota in store.each("resourcequotas", namespace):
        _admit_quota(store, pod, quota)


def _forbidden(name: str, why: str) -> ApiError:
    return ApiError(403, f'pods "{name}" is forbidden: {why}')


def _admit_account(store: Store, pod: Object, namespace: str) -> None:
    account = (
        pod["spec"].get("serviceAccountName") or pod["spec"].get("serviceAccount") or "default"
    )
    pod["spec"]["serviceAccountName"] = pod["spec"]["serviceAccount"] = account
    if store.find("serviceaccounts", namespace, account) is None:
        missing = f'serviceaccount "{account}" not found'
        why = f"error looking up service account {namespace}/{account}: {missing}"
        raise _forbidden(pod["metadata"]["name"], why)


def _admit_priority(store: Store, pod: Object) -> None:
    wanted = pod["spec"].get("priorityClassName")
    if not wanted:
        pod["spec"]["priority"] = 0
    elif wanted in SYSTEM_PRIORITIES:
        pod["spec"]["priority"] = SYSTEM_PRIORITIES[wanted]
    else:
        found = store.find("priorityclasses", "", wanted)
        if found is None:
            why = f"no PriorityClass with name {wanted} was found"
            raise _forbidden(pod["metadata"]["name"], why)
        pod["spec"]["priority"] = found["value"]
        pod["spec"].setdefault(
            "preemptionPolicy", found.get("preemptionPolicy", "PreemptLowerPriority")
        )


def restricted_violations(spec: dict[str, Any]) -> Iterator[str]:
    """Yield what the restricted profile forbids, in the API's words."""
    containers = [*spec.get("initContainers", []), *spec.get("containers", [])]
    pod_context = spec.get("securityContext") or {}
    contexts = {row["name"]: row.get("securityContext") or {} for row in containers}
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"host namespaces ({key}=true)"
    if names := [name for name, context in contexts.items() if context.get("privileged")]:
        yield f"privileged ({_each(names)} must not set securityContext.privileged=true)"
    if names := [n for n, c in contexts.items() if c.get("allowPrivilegeEscalation") is not False]:
        must = "must set securityContext.allowPrivilegeEscalation=false"
        yield f"allowPrivilegeEscalation != false ({_each(names)} {must})"
    if names := [n for n, c in contexts.items() if "ALL" not in _dropped(c) or _added(c)]:
        must = 'must set securityContext.capabilities.drop=["ALL"]'
        yield f"unrestricted capabilities ({_each(names)} {must})"
    for volume in spec.get("volumes", []):
        for kind in sorted(set(volume) - {"name"} - VOLUMES):
            name = f'volume "{volume["name"]}"'
            yield f'restricted volume types ({name} uses restricted volume type "{kind}")'
    if names := [n for n, c in contexts.items() if not _either(c, pod_context, "runAsNonRoot")]:
        must = "must set securityContext.runAsNonRoot=true"
        yield f"runAsNonRoot != true (pod or {_each(names)} {must})"
    if [n for n, c in contexts.items() if _either(c, pod_context, "runAsUser") == 0]:
        yield "runAsUser=0 (pod must not set runAsUser=0)"
    if names := [n for n, c in contexts.items() if not _has_seccomp(c, pod_context)]:
        must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield f"seccompProfile (pod or {_each(names)} {must})"


def _each(names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"container{'s' if len(names) > 1 else ''} {quoted}"


def _dropped(context: dict[str, Any]) -> list[str]:
    return (context.get("capabilities") or {}).get("drop") or []


def _added(context: dict[str, Any]) -> set[str]:
    return set((context.get("capabilities") or {}).get("add") or []) - {"NET_BIND_SERVICE"}


def _either(context: dict[str, Any], pod_context: dict[str, Any], key: str) -> Any:
    return context.get(key, pod_context.get(key))


def _has_seccomp(context: dict[str, Any], pod_context: dict[str, Any]) -> bool:
    profile = _either(context, pod_context, "seccompProfile") or {}
    return profile.get("type") in ("RuntimeDefault", "Localhost")


def _admit_quota(store: Store, pod: Object, quota: Object) -> None:
    hard = amounts(quota["spec"].get("hard"))
    asked = usage_of(pod)
    name = quota["metadata"]["name"]
    must = [key for key in sorted(hard) if _is_compute(key) and key not in asked]
    if must:
        listed = ",".join(must)
        why = f"failed quota: {name}: must specify {listed} for: {pod['spec']['containers'][0]['name']}"
        raise _forbidden(pod["metadata"]["name"], why)
    used = used_of(store, quota["metadata"]["namespace"])
    check_hard(f'pods "{pod["metadata"]["name"]}"', name, hard, asked, used)


def check_hard(what: str, quota: str, hard: Amounts, asked: Amounts, used: Amounts) -> None:
    """Refuse what does not fit.

    Raises:
        ApiError: 403, exceeded quota.
    """
    over = [
        key
        for key in sorted(asked)
        if key in hard and asked[key] > 0 and used.get(key, Decimal(0)) + asked[key] > hard[key]
    ]
    if over:
        parts = (("requested", asked), ("used", used), ("limited", hard))
        shown = ", ".join(f"{label}: {_list(over, values)}" for label, values in parts)
        raise ApiError(403, f"{what} is forbidden: exceeded quota: {quota}, {shown}")


def admit_count(store: Store, resource: str, namespace: str, name: str, qualified: str) -> None:
    """Apply count quotas to objects other than pods."""
    key = COUNTED.get(resource)
    if key is None:
        return
    for quota in store.each("resourcequotas", namespace):
        hard = amounts(quota["spec"].get("hard"))
        used = {key: Decimal(sum(1 for _ in store.each(resource, namespace)))}
        what = f'{qualified} "{name}"'
        check_hard(what, quota["metadata"]["name"], hard, {key: Decimal(1)}, used)


def usage_of(pod: Object) -> Amounts:
    """What a pod counts for in a quota, under every name that a quota may use for it."""
    asked, most = requests(pod), limits(pod)
    used = {f"requests.{key}": value for key, value in asked.items()}
    used |= {key: value for key, value in asked.items() if key in ("cpu", "memory")}
    used |= {f"limits.{key}": value for key, value in most.items()}
    return used | {"pods": Decimal(1), "count/pods": Decimal(1)}


def used_of(store: Store, namespace: str) -> Amounts:
    used: Amounts = {}
    for pod in store.each("pods", namespace):
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            for key, value in usage_of(pod).items():
                used[key] = used.get(key, Decimal(0)) + value
    for resource, key in COUNTED.items():
        used[key] = Decimal(sum(1 for _ in store.each(resource, namespace)))
    return used


def update_quotas(store: Store) -> None:
    """Keep each quota's status."""
    for quota in list(store.each("resourcequotas")):
        namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
        hard = quota["spec"].get("hard") or {}
        used = used_of(store, namespace)
        fresh = store.get("resourcequotas", namespace, name)
        fresh["status"] = {
            "hard": hard,
            "used": {key: text(used.get(key, Decimal(0))) for key in hard},
        }
        store.put("resourcequotas", fresh)


def _is_compute(key: str) -> bool:
    return key in (
        "cpu",
        "memory",
        "requests.cpu",
        "requests.memory",
        "limits.cpu",
        "limits.memory",
    )


def _list(keys: list[str], values: Amounts) -> str:
    return ",".join(f"{key}={text(values.get(key, Decimal(0)))}" for key in keys)
