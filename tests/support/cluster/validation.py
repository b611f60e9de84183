"""What the API refuses with 422, as far as Jobs and pods go."""

import re
from collections.abc import Iterator
from typing import Any

from tests.support.cluster.errors import invalid
from tests.support.cluster.resources import Resource
from tests.support.cluster.store import Object

SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
LABEL_KEY = re.compile(r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
ENV_NAME = re.compile(r"^[^=\s]+$")
DNS_LABELS = ("namespaces", "services")
MUTABLE = {
    "suspend",
    "parallelism",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
}
QUEUE_MAY_SET = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
RULE_ACTIONS = ("FailJob", "Ignore", "Count")


def validate(resource: Resource, value: Object) -> None:
    """Check an object that is to be created.

    Raises:
        ApiError: 422, with every problem.
    """
    problems = [*_metadata(resource, value["metadata"])]
    if resource.plural == "jobs":
        problems += _job(value)
    if resource.plural == "pods":
        problems += _pod_spec(value["spec"], "spec")
    if problems:
        raise invalid(resource.qualified_kind, value["metadata"].get("name", ""), *problems)


def validate_job_update(old: Object, new: Object) -> None:
    """Refuse changes of what a Job may not change.

    Raises:
        ApiError: 422, field is immutable.
    """
    before, after = _fixed(old), _fixed(new)
    if old["spec"].get("suspend") and not (old.get("status") or {}).get("startTime"):
        before, after = _without_queue_fields(before), _without_queue_fields(after)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            raise invalid("Job.batch", old["metadata"]["name"], f"spec.{key}: field is immutable")


def _fixed(job: Object) -> dict[str, Any]:
    return {key: part for key, part in job["spec"].items() if key not in MUTABLE}


def _without_queue_fields(spec: dict[str, Any]) -> dict[str, Any]:
    template = dict(spec["template"])
    meta = {
        key: part
        for key, part in (template.get("metadata") or {}).items()
        if key not in ("labels", "annotations")
    }
    pod = {key: part for key, part in template["spec"].items() if key not in QUEUE_MAY_SET}
    return {**spec, "template": {**template, "metadata": meta, "spec": pod}}


def _metadata(resource: Resource, meta: dict[str, Any]) -> Iterator[str]:
    name = meta.get("name", "")
    pattern, limit = (LABEL, 63) if resource.plural in DNS_LABELS else (SUBDOMAIN, 253)
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
    elif not pattern.match(name) or len(name) > limit:
        rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
        yield f'metadata.name: Invalid value: "{name}": {rule}'
    for key, text in (meta.get("labels") or {}).items():
        if not LABEL_KEY.match(key):
            yield f'metadata.labels: Invalid value: "{key}": name part is not a qualified name'
        if not LABEL_VALUE.match(text) or len(text) > 63:
            yield f'metadata.labels: Invalid value: "{text}": a valid label must have at most 63 characters'


def _job(job: Object) -> Iterator[str]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    if len(name) > 63:
        text = "must be no more than 63 characters"
        yield f'spec.template.labels: Invalid value: "{name}": {text}'
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        yield "spec.completions: Required value: when completion mode is Indexed"
    elif indexed and len(f"{name}-{max(spec['completions'] - 1, 0)}") > 63:
        yield f'metadata.name: Invalid value: "{name}": will not able to create pod with invalid DNS label'
    if indexed and not LABEL.match(name):
        yield f'metadata.name: Invalid value: "{name}": will not able to create pod with invalid DNS label'
    for key in (
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ):
        if (spec.get(key) or 0) < 0:
            yield f"spec.{key}: Invalid value: {spec[key]}: must be greater than or equal to 0"
    yield from _pod_spec(spec["template"]["spec"], "spec.template.spec")
    yield from _failure_policy(spec)
    yield from _success_policy(spec, indexed=indexed)


def _failure_policy(spec: dict[str, Any]) -> Iterator[str]:
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    names = [row["name"] for row in spec["template"]["spec"]["containers"]]
    for number, rule in enumerate(rules):
        path = f"spec.podFailurePolicy.rules[{number}]"
        if rule.get("action") not in RULE_ACTIONS:
            yield f'{path}.action: Unsupported value: "{rule.get("action")}"'
        codes = rule.get("onExitCodes")
        if bool(codes) == bool(rule.get("onPodConditions")):
            yield f"{path}: Invalid value: specifying one of onExitCodes and onPodConditions is required"
        if codes:
            yield from _exit_codes(codes, f"{path}.onExitCodes", names)


def _exit_codes(codes: dict[str, Any], path: str, names: list[str]) -> Iterator[str]:
    values = codes.get("values") or []
    if codes.get("operator") not in ("In", "NotIn"):
        yield f'{path}.operator: Unsupported value: "{codes.get("operator")}"'
    if codes.get("operator") == "In" and 0 in values:
        yield f"{path}.values: Invalid value: 0: must not be 0 for the In operator"
    if not values or values != sorted(set(values)):
        yield f"{path}.values: Invalid value: {values}: must be ordered and without duplicates"
    if codes.get("containerName") not in (None, *names):
        yield f'{path}.containerName: Invalid value: "{codes["containerName"]}": must be one of the container names'


def _success_policy(spec: dict[str, Any], *, indexed: bool) -> Iterator[str]:
    policy = spec.get("successPolicy")
    if policy is None:
        return
    if not indexed:
        yield "spec.successPolicy: Invalid value: requires indexed completion mode"
    if not policy.get("rules"):
        yield "spec.successPolicy.rules: Required value: at least one rule must be specified"


def _pod_spec(spec: dict[str, Any], path: str) -> Iterator[str]:
    containers = spec.get("containers") or []
    if not containers:
        yield f"{path}.containers: Required value"
    if len(containers) > 1:
        yield f"{path}.containers: Forbidden: the double runs one container per pod"
    if spec.get("restartPolicy") != "Never":
        yield f'{path}.restartPolicy: Unsupported value: "{spec.get("restartPolicy")}": the double runs "Never" only'
    volumes = {row["name"] for row in spec.get("volumes") or []}
    for number, container in enumerate([*(spec.get("initContainers") or []), *containers]):
        yield from _container(container, volumes, f"{path}.containers[{number}]")


def _container(container: dict[str, Any], volumes: set[str], path: str) -> Iterator[str]:
    if not LABEL.match(container.get("name", "")):
        yield f'{path}.name: Invalid value: "{container.get("name")}"'
    if not container.get("image"):
        yield f"{path}.image: Required value"
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            yield f'{path}.volumeMounts[{number}].name: Not found: "{mount.get("name")}"'
    for number, variable in enumerate(container.get("env") or []):
        if not ENV_NAME.match(variable.get("name", "")):
            yield f'{path}.env[{number}].name: Invalid value: "{variable.get("name")}"'
        if variable.get("value") and variable.get("valueFrom"):
            yield f"{path}.env[{number}].valueFrom: Invalid value: may not be specified when `value` is not empty"
    yield from _resources(container.get("resources") or {}, path)


def _resources(resources: dict[str, Any], path: str) -> Iterator[str]:
    most, asked = resources.get("limits") or {}, resources.get("requests") or {}
    for key in sorted({*most, *asked}):
        if "/" in key and most.get(key) != asked.get(key, most.get(key)):
            yield f"{path}.resources.requests: Invalid value: must be equal to {key} limit"
        if "/" in key and key not in most:
            yield f"{path}.resources.limits: Required value: Limit must be set for non overcommitable resources"
