"""What the API's objects say about a job: whether it has ended, how, and why it does not start. Pure functions."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flows.executors import Outcome, OutcomeKind

Object = dict[str, Any]

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
)
OOM_REASON = "OOMKilled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Why a job does not run, in the cluster's own words."""

    kind: OutcomeKind
    reason: str


def condition(thing: Object, kind: str) -> Object | None:
    """Return the condition of this kind if it is true."""
    for one in (thing.get("status") or {}).get("conditions") or []:
        if one["type"] == kind and one["status"] == "True":
            return dict(one)
    return None


def is_finished(job: Object) -> bool:
    """Tell whether a Job has ended.

    `SuccessCriteriaMet` and `FailureTarget` come before its pods are gone and say nothing yet.
    """
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def outcome_of(job: Object, pods: Iterable[Object], log_tail: str) -> Outcome:
    """Judge a finished Job."""
    if condition(job, "Complete"):
        return Outcome(kind=OutcomeKind.SUCCEEDED, exit_code=0)
    failed = condition(job, "Failed") or {}
    reason, message = failed.get("reason", ""), failed.get("message", "")
    kind, code = _why(reason, list(pods))
    return Outcome(kind=kind, exit_code=code, log_tail=log_tail, reason=f"{reason}: {message}")


def _why(reason: str, pods: list[Object]) -> tuple[OutcomeKind, int | None]:
    if reason == "DeadlineExceeded":
        return OutcomeKind.DEADLINE, None
    ends = sorted(filter(None, map(_termination, pods)), key=lambda end: end["finishedAt"] or "")
    bad = [end for end in ends if end["exitCode"] != 0]
    if any(end.get("reason") == OOM_REASON for end in bad):
        return OutcomeKind.OOM, 137
    if not bad and any((pod.get("status") or {}).get("reason") == "Evicted" for pod in pods):
        return OutcomeKind.EVICTED, None
    return OutcomeKind.FAILED, bad[-1]["exitCode"] if bad else None


def _termination(pod: Object) -> Object | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if ended:
            return {"finishedAt": None, **ended}
    return None


def has_started(pod: Object) -> bool:
    """Tell whether a pod's container runs or has run."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        state = status.get("state") or {}
        if "running" in state or "terminated" in state:
            return True
    return False


def pending_since(job: Object) -> float | None:
    """Return when a Job was last allowed to run [s since 1970]; None while it is suspended, in a queue perhaps."""
    if job["spec"].get("suspend"):
        return None
    since = (job.get("status") or {}).get("startTime") or job["metadata"]["creationTimestamp"]
    return datetime.datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp()


def waiting_for(pods: Iterable[Object], events: Iterable[Object]) -> Waiting | None:
    """Tell why a job has no running pod: the image, the scheduler or the quota; None where nothing is wrong yet."""
    for pod in pods:
        status = pod.get("status") or {}
        for container in status.get("containerStatuses") or []:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in IMAGE_REASONS:
                reason = (
                    f"{waiting['reason']}: {waiting.get('message', container.get('image', ''))}"
                )
                return Waiting(kind=OutcomeKind.IMAGE, reason=reason)
        for one in status.get("conditions") or []:
            if one["type"] == "PodScheduled" and one["status"] == "False":
                return Waiting(kind=OutcomeKind.UNSCHEDULABLE, reason=one.get("message", ""))
    return _denied(events)


def _denied(events: Iterable[Object]) -> Waiting | None:
    """A Job whose pods the quota refuses has neither status nor condition: only an event tells."""
    for event in events:
        if event.get("reason") == "FailedCreate":
            message = event.get("message", "")
            kind = OutcomeKind.QUOTA if "exceeded quota" in message else OutcomeKind.FAILED
            return Waiting(kind=kind, reason=message)
    return None
