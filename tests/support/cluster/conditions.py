"""Conditions in a status."""

from typing import Any

from tests.support.cluster.store import Object, rfc3339


def condition(value: Object, kind: str) -> dict[str, Any] | None:
    for row in (value.get("status") or {}).get("conditions") or []:
        if row["type"] == kind:
            return dict(row)
    return None


def holds(value: Object, kind: str) -> bool:
    row = condition(value, kind)
    return row is not None and row["status"] == "True"


def set_condition(
    value: Object, kind: str, status: str = "True", reason: str = "", message: str = ""
) -> None:
    """Set one condition; its time moves only when it does."""
    rows = value.setdefault("status", {}).setdefault("conditions", [])
    old = condition(value, kind)
    row = {"type": kind, "status": status, "lastTransitionTime": rfc3339()}
    if old is not None and old["status"] == status:
        row["lastTransitionTime"] = old["lastTransitionTime"]
    if reason:
        row["reason"] = reason
    if message:
        row["message"] = message
    if value["kind"] == "Job":
        row["lastProbeTime"] = row["lastTransitionTime"]
    value["status"]["conditions"] = [old for old in rows if old["type"] != kind] + [row]
