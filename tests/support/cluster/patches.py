"""The three kinds of patch."""

import copy
from typing import Any

import jsonpatch

from tests.support.cluster.errors import ApiError

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE_KEYS = {
    "ownerReferences": "uid",
    "conditions": "type",
    "taints": "key",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "port",
    "imagePullSecrets": "name",
    "secrets": "name",
}


def apply_patch(value: dict[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    """Return the patched object.

    Raises:
        ApiError: 415, a kind that the double does not know (server-side apply); 400 or 422, a patch that does not fit.
    """
    if content_type == JSON_PATCH:
        return _json_patch(value, patch)
    if content_type not in (MERGE_PATCH, STRATEGIC):
        raise ApiError(415, f"the double knows no patches of type {content_type!r}")
    if not isinstance(patch, dict):
        raise ApiError(400, "the patch is not an object")
    merged: dict[str, Any] = _merge(value, patch, strategic=content_type == STRATEGIC)
    return merged


def _json_patch(value: dict[str, Any], patch: Any) -> dict[str, Any]:
    try:
        patched: dict[str, Any] = jsonpatch.apply_patch(value, patch)
    except jsonpatch.JsonPatchTestFailed as error:
        raise ApiError(422, f"the server rejected our request: {error}", "Invalid") from error
    except jsonpatch.JsonPatchException as error:
        raise ApiError(422, f"the patch does not apply: {error}", "Invalid") from error
    return patched


def _merge(value: Any, patch: Any, *, strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            merged.pop(key, None)
        elif strategic and isinstance(part, list) and key in MERGE_KEYS:
            merged[key] = _merge_list(merged.get(key) or [], part, MERGE_KEYS[key])
        elif strategic and key == "finalizers":
            merged[key] = list(dict.fromkeys([*(merged.get(key) or []), *part]))
        else:
            merged[key] = _merge(merged.get(key), part, strategic=strategic)
    return merged


def _merge_list(old: list[Any], new: list[Any], key: str) -> list[Any]:
    merged = {row[key]: row for row in old}
    for row in new:
        if row.get("$patch") == "delete":
            merged.pop(row[key], None)
        else:
            merged[row[key]] = _merge(merged.get(row[key]), row, strategic=True)
    return list(merged.values())
