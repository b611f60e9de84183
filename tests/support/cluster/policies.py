"""podFailurePolicy and successPolicy."""

from typing import Any

from tests.support.cluster.store import Object


def failure_action(job: Object, pod: Object) -> tuple[str, str]:
    """Return what the first rule that fits says of a failed pod, and the message of a FailJob.

    Without a rule that fits, the action is Count.
    """
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate(rules):
        why = _matches(rule, pod)
        if why is None:
            continue
        container, text = why
        who = f"Container {container} for pod {name}" if container else f"Pod {name}"
        return rule["action"], f"{who} {text} matching {rule['action']} rule at index {number}"
    return "Count", ""


def _matches(rule: dict[str, Any], pod: Object) -> tuple[str, str] | None:
    if codes := rule.get("onExitCodes"):
        return _matches_code(codes, pod)
    for wanted in rule.get("onPodConditions") or []:
        for row in pod["status"].get("conditions") or []:
            if (row["type"], row["status"]) == (wanted["type"], wanted.get("status", "True")):
                return "", f"has condition {row['type']}"
    return None


def _matches_code(codes: dict[str, Any], pod: Object) -> tuple[str, str] | None:
    status = pod["status"]
    rows = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for row in rows:
        ended = (row.get("state") or {}).get("terminated")
        if ended is None or codes.get("containerName") not in (None, row["name"]):
            continue
        code = ended["exitCode"]
        if code != 0 and (code in codes["values"]) == (codes["operator"] == "In"):
            return row["name"], f"failed with exit code {code}"
    return None


def success_met(job: Object, done: set[int]) -> int | None:
    """Return the index of the successPolicy rule that is met."""
    for number, rule in enumerate((job["spec"].get("successPolicy") or {}).get("rules") or []):
        wanted = parse_indexes(rule["succeededIndexes"]) if "succeededIndexes" in rule else None
        counted = done if wanted is None else done & wanted
        need = rule.get("succeededCount", len(wanted or ()))
        if len(counted) >= need:
            return number
    return None


def parse_indexes(text: str) -> set[int]:
    """Read "0,2-4"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: set[int]) -> str:
    """Write "0,2-4"."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    # Two neighbours are written with a comma, as the controller does.
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(parts)
