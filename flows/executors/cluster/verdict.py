"""What the API's objects say about a job: whether it has ended, how, and why it does not start. Pure functions."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from flows.executors import Outcome, OutcomeKind
from stages._ranks import EXIT_PEER, PASSING

Object = dict[str, Any]

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
)
OOM_REASON = "OOMKilled"
STARTING = frozenset({"ContainerCreating", "PodInitializing"})
LOST_S = 30.0
"""How long after its grace period a pod may still be seen running [s]."""


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
    pods = list(pods)
    name = str(job["metadata"]["name"])
    judged = _judge(job, pods, log_tail)
    return replace(judged, job=name, images=_images(pods), gpus=_gpus(job["spec"]))


def _judge(job: Object, pods: list[Object], log_tail: str) -> Outcome:
    if condition(job, "Complete"):
        return Outcome(kind=OutcomeKind.SUCCEEDED, exit_code=0)
    failed = condition(job, "Failed") or {}
    reason, message = failed.get("reason", ""), failed.get("message", "")
    kind, code = _why(reason, pods)
    return Outcome(kind=kind, exit_code=code, log_tail=log_tail, reason=f"{reason}: {message}")


def _gpus(spec: Object) -> int:
    """Return the GPUs of all pods that a Job has at a time, whatever their make."""
    containers = spec["template"]["spec"]["containers"]
    limits = [(one.get("resources") or {}).get("limits") or {} for one in containers]
    each = sum(int(n) for limit in limits for name, n in limit.items() if name.endswith("/gpu"))
    return each * int(spec.get("completions") or 1)


def _images(pods: Iterable[Object]) -> tuple[str, ...]:
    """Return the images that the pods' containers ran; a node names one by its digest."""
    states = [
        one for pod in pods for one in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    return tuple(sorted({one["imageID"] for one in states if one.get("imageID")}))


def _why(reason: str, pods: list[Object]) -> tuple[OutcomeKind, int | None]:
    if reason == "DeadlineExceeded":
        return OutcomeKind.DEADLINE, None
    ends = sorted(filter(None, map(termination, pods)), key=lambda end: end["finishedAt"] or "")
    bad = [end for end in ends if end["exitCode"] != 0]
    if any(end.get("reason") == OOM_REASON for end in bad):
        return OutcomeKind.OOM, 137
    if not bad and any((pod.get("status") or {}).get("reason") == "Evicted" for pod in pods):
        return OutcomeKind.EVICTED, None
    return OutcomeKind.FAILED, _cause([end["exitCode"] for end in bad])


def _cause(codes: list[int]) -> int | None:
    """Return the exit code that tells most: of several ranks some only end because others do."""
    for lesser in (PASSING, (EXIT_PEER,), ()):
        telling = [code for code in codes if code not in lesser]
        if telling:
            return telling[-1]
    return None


def termination(pod: Object) -> Object | None:
    """Return how a pod's container ended, None where it has not."""
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


def is_ready(pod: Object) -> bool:
    """Tell whether a pod takes requests: its Service then leads to it."""
    return condition(pod, "Ready") is not None and "deletionTimestamp" not in pod["metadata"]


def rank_of(pod: Object) -> str:
    """Return a pod's index in its Job."""
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get("batch.kubernetes.io/job-completion-index", "0"))


def waiting_since(job: Object, pods: Iterable[Object]) -> float | None:
    """Return since when a Job could run but has no running pod [s since 1970].

    None while a pod of it runs, and while it is suspended: in a queue perhaps, and that has no deadline.
    """
    if job["spec"].get("suspend"):
        return None
    moments = [(job.get("status") or {}).get("startTime") or job["metadata"]["creationTimestamp"]]
    for pod in pods:
        ended = termination(pod)
        if ended is None and has_started(pod):
            return None
        moments.append((ended or {}).get("finishedAt") or pod["metadata"]["creationTimestamp"])
    return max(map(_seconds, moments))


def lost_since(pods: Iterable[Object], now: float) -> float | None:
    """Return since when a pod should have been gone and is not: its node is lost [s since 1970]."""
    for pod in pods:
        leaving = pod["metadata"].get("deletionTimestamp")
        if leaving and has_started(pod) and termination(pod) is None:
            due = _seconds(leaving)  # the grace period is in it
            if now > due + LOST_S:
                return due
    return None


def _seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def waiting_for(pods: Iterable[Object], events: Iterable[Object]) -> Waiting | None:
    """Tell why a job has no running pod: the image, the scheduler or the quota; None where nothing is wrong yet."""
    for pod in pods:
        status = pod.get("status") or {}
        for container in status.get("containerStatuses") or []:
            waiting = (container.get("state") or {}).get("waiting") or {}
            word = waiting.get("reason", "")
            if word and word not in STARTING:
                kind = OutcomeKind.IMAGE if word in IMAGE_REASONS else OutcomeKind.FAILED
                reason = f"{word}: {waiting.get('message', container.get('image', ''))}"
                return Waiting(kind=kind, reason=reason)
        for one in status.get("conditions") or []:
            if one["type"] == "PodScheduled" and one["status"] == "False":
                return Waiting(kind=OutcomeKind.UNSCHEDULABLE, reason=one.get("message", ""))
    return _from_events(events)


def _from_events(events: Iterable[Object]) -> Waiting | None:
    """A Job whose pods the quota refuses has neither status nor condition: only an event tells.

    So it is with a volume that cannot be mounted.
    """
    newest = sorted(events, key=lambda event: event.get("lastTimestamp") or "", reverse=True)
    for event in newest:
        message = event.get("message", "")
        if event.get("reason") == "FailedCreate":
            kind = OutcomeKind.QUOTA if "exceeded quota" in message else OutcomeKind.FAILED
            return Waiting(kind=kind, reason=message)
        if event.get("reason") == "FailedMount":
            return Waiting(kind=OutcomeKind.UNSCHEDULABLE, reason=message)
    return None
