"""labelSelector and fieldSelector."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.cluster.errors import ApiError

Object = dict[str, Any]
Test = Callable[[Object], bool]
FIELDS = {
    "pods": {"metadata.name", "metadata.namespace", "status.phase", "spec.nodeName"},
    "jobs": {"metadata.name", "metadata.namespace", "status.successful"},
    "events": {
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    },
}
SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


def compile_selectors(resource: str, labels: str, fields: str) -> Test:
    """Make one test of both selectors.

    Raises:
        ApiError: 400, a selector that is not understood.
    """
    tests = [_label(part.strip()) for part in re.split(r",(?![^(]*\))", labels) if part.strip()]
    tests += [_field(resource, part.strip()) for part in fields.split(",") if part.strip()]
    return lambda value: all(test(value) for test in tests)


def _label(part: str) -> Test:
    if found := SET.match(part):
        key, operator, values = found.groups()
        allowed = {value.strip() for value in values.split(",")}
        return lambda value: (_labels(value).get(key) in allowed) == (operator == "in")
    for operator in ("!=", "==", "="):
        if operator in part:
            key, wanted = (side.strip() for side in part.split(operator, 1))
            return lambda value: (_labels(value).get(key) == wanted) == (operator != "!=")
    if part.startswith("!"):
        return lambda value: part[1:].strip() not in _labels(value)
    if re.fullmatch(r"[A-Za-z0-9./_-]+", part):
        return lambda value: part in _labels(value)
    raise ApiError(400, f"unable to parse requirement: {part!r}")


def _field(resource: str, part: str) -> Test:
    negative = "!=" in part
    path, found, wanted = part.replace("!=", "=").replace("==", "=").partition("=")
    if not found or path not in FIELDS.get(resource, {"metadata.name", "metadata.namespace"}):
        raise ApiError(400, f'field label not supported: "{path}"')
    return lambda value: (_at(value, path) == wanted) != negative


def _labels(value: Object) -> dict[str, str]:
    return value["metadata"].get("labels") or {}


def _at(value: Any, path: str) -> str:
    for step in path.split("."):
        value = (value or {}).get(step)
    return "" if value is None else str(value)
