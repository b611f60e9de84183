"""From a request's body to a stored object: names, defaults, validation, admission."""

import base64
import copy
import random
import uuid
from typing import Any

from tests.support.cluster.admission import admit_count, admit_pod
from tests.support.cluster.deletion import TRACKING
from tests.support.cluster.errors import ApiError, not_found
from tests.support.cluster.resources import RESOURCES, Resource
from tests.support.cluster.schema import check_schema
from tests.support.cluster.store import Object, Store
from tests.support.cluster.validation import validate

SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
BASE = 58
SYSTEM_METADATA = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
)


def create(
    store: Store,
    resource: Resource,
    namespace: str,
    body: Any,
    *,
    strict: bool = False,
    dry_run: bool = False,
) -> Object:
    """Create an object on a client's or a controller's behalf.

    Raises:
        ApiError: whatever the API would answer.
    """
    value = _decode(resource, namespace, body, strict=strict)
    if resource.namespaced:
        _check_namespace(store, resource, namespace, value["metadata"]["name"])
    complete(resource, value)
    validate(resource, value)
    value["metadata"]["uid"] = str(uuid.uuid4())
    if resource.plural == "jobs":
        _claim_pods(value)
    name = value["metadata"]["name"]
    admit_count(store, resource.plural, namespace, name, resource.qualified)
    if resource.plural == "pods":
        admit_pod(store, value)
    if dry_run:
        return _dry(store, resource, value)
    return store.create(resource.plural, value)


def _decode(resource: Resource, namespace: str, body: Any, *, strict: bool) -> Object:
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not an object")
    value = copy.deepcopy(body)
    for key, wanted in (("kind", resource.kind), ("apiVersion", resource.api_version)):
        if value.setdefault(key, wanted) != wanted:
            raise ApiError(400, f"{key} is {value[key]!r}, this path takes {wanted!r}")
    check_schema(resource, value, strict=strict)
    meta = value.setdefault("metadata", {})
    for key in SYSTEM_METADATA:
        meta.pop(key, None)
    if resource.namespaced and meta.setdefault("namespace", namespace) != namespace:
        raise ApiError(
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        )
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generated_name(meta["generateName"])
    meta.setdefault("name", "")
    return value


def generated_name(prefix: str) -> str:
    return prefix[:BASE] + "".join(random.choices(SUFFIX, k=5))


def _check_namespace(store: Store, resource: Resource, namespace: str, name: str) -> None:
    space = store.find("namespaces", "", namespace)
    if space is None:
        raise not_found("namespaces", namespace)
    if space["metadata"].get("deletionTimestamp"):
        why = (
            f"unable to create new content in namespace {namespace} because it is being terminated"
        )
        raise ApiError(403, f'{resource.qualified} "{name}" is forbidden: {why}')


def complete(resource: Resource, value: Object) -> None:
    """Fill in the API's defaults."""
    value["metadata"]["generation"] = 1
    if resource.plural == "jobs":
        _complete_job(value)
    elif resource.plural == "pods":
        _complete_pod(value.setdefault("spec", {}))
        value["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    elif resource.plural == "namespaces":
        labels = value["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = value["metadata"]["name"]
        value["status"] = {"phase": "Active"}
    elif resource.plural in ("persistentvolumes", "persistentvolumeclaims"):
        value["status"] = {"phase": "Pending"}
    elif resource.plural == "secrets":
        _complete_secret(value)


def _complete_secret(value: Object) -> None:
    value.setdefault("type", "Opaque")
    for key, text in (value.pop("stringData", None) or {}).items():
        value.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _complete_job(job: Object) -> None:
    spec = job.setdefault("spec", {})
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    _complete_pod(template.setdefault("spec", {}))
    if spec.get("parallelism") is None and spec.get("completions") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    careful = bool(spec.get("podFailurePolicy"))
    spec.setdefault("podReplacementPolicy", "Failed" if careful else "TerminatingOrFailed")
    spec["manualSelector"] = False
    job["status"] = {}


def _claim_pods(job: Object) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    labels = {"job-name": name, "controller-uid": uid}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    template = job["spec"]["template"]["metadata"]
    template["labels"] = {**(template.get("labels") or {}), **labels}
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


def _complete_pod(spec: dict[str, Any]) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        latest = ":" not in container.get("image", "").rpartition("/")[2]
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _dry(store: Store, resource: Resource, value: Object) -> Object:
    namespace = value["metadata"].get("namespace", "") if resource.namespaced else ""
    if store.find(resource.plural, namespace, value["metadata"]["name"]):
        name = value["metadata"]["name"]
        raise ApiError(409, f'{resource.qualified} "{name}" already exists', "AlreadyExists")
    return value


def pod_of_job(job: Object, index: int | None) -> Object:
    """Make the pod that a Job wants next, as its controller would post it."""
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    name = meta["name"] if index is None else f"{meta['name']}-{index}"
    head = template.get("metadata") or {}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-",
            "namespace": meta["namespace"],
            "labels": dict(head.get("labels") or {}),
            "annotations": dict(head.get("annotations") or {}),
            "finalizers": [TRACKING],
            "ownerReferences": [_owner(job)],
        },
        "spec": template["spec"],
    }
    if index is not None:
        _index_pod(pod, name, index)
    return pod


def _index_pod(pod: Object, hostname: str, index: int) -> None:
    key = "batch.kubernetes.io/job-completion-index"
    pod["metadata"]["labels"][key] = pod["metadata"]["annotations"][key] = str(index)
    pod["spec"]["hostname"] = hostname
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{key}']"}}
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        container["env"] = [
            *(container.get("env") or []),
            {"name": "JOB_COMPLETION_INDEX", "valueFrom": source},
        ]


def _owner(job: Object) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


JOBS = RESOURCES["jobs"]
PODS = RESOURCES["pods"]
