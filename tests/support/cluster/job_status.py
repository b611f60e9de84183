"""What a Job's pods add up to: counts, and the end that they mean."""

import time
from dataclasses import dataclass

from tests.support.cluster.conditions import condition, holds, set_condition
from tests.support.cluster.deletion import TRACKING
from tests.support.cluster.events import record_event, warn
from tests.support.cluster.policies import failure_action, format_indexes, success_met
from tests.support.cluster.store import Object, Store, hidden, rfc3339

SUCCEEDING, FAILING = "SuccessCriteriaMet", "FailureTarget"
TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class End:
    """Why a Job is about to end."""

    criterion: str
    reason: str
    message: str


DEADLINE = End(FAILING, "DeadlineExceeded", "Job was active longer than specified deadline")
BACKOFF = End(FAILING, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
REACHED = End(SUCCEEDING, "CompletionsReached", "Reached expected number of succeeded pods")


def is_finished(job: Object) -> bool:
    return holds(job, "Complete") or holds(job, "Failed")


def pending_end(job: Object) -> str | None:
    """Which of the two conditions that come before the end holds."""
    return next((kind for kind in (SUCCEEDING, FAILING) if holds(job, kind)), None)


def active_pods(pods: list[Object]) -> list[Object]:
    return [
        pod
        for pod in pods
        if pod["status"]["phase"] not in TERMINAL and not pod["metadata"].get("deletionTimestamp")
    ]


def index_of(pod: Object) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("batch.kubernetes.io/job-completion-index", -1))


def may_judge_end(pods: list[Object]) -> bool:
    """A Job ends only when its last pod has."""
    return all(pod["status"]["phase"] in TERMINAL for pod in pods)


def count_ended(job: Object, pods: list[Object]) -> list[Object]:
    """Count pods that have ended, each once; returns those that may go now."""
    notes = hidden(job)
    counted = notes.setdefault("counted", [])
    ended = []
    for pod in pods:
        if TRACKING not in pod["metadata"].get("finalizers", []) or not _has_ended(job, pod):
            continue
        ended.append(pod)
        if pod["metadata"]["uid"] not in counted:
            counted.append(pod["metadata"]["uid"])
            _count(job, pod)
    return ended


def _has_ended(job: Object, pod: Object) -> bool:
    if pod["status"]["phase"] in TERMINAL:
        return True
    replaced_early = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    if pod["metadata"].get("deletionTimestamp"):
        # One that never ran has no kubelet to report its end.
        return replaced_early or not pod["spec"].get("nodeName")
    return False


def _count(job: Object, pod: Object) -> None:
    status, notes = job["status"], hidden(job)
    if pod["status"]["phase"] == "Succeeded":
        notes["failure_streak"] = 0
        index = index_of(pod)
        if index >= 0:
            notes["done"] = sorted({*notes.get("done", []), index})
            status["completedIndexes"] = format_indexes(set(notes["done"]))
            status["succeeded"] = len(notes["done"])
        else:
            status["succeeded"] = status.get("succeeded", 0) + 1
        return
    if pending_end(job) == SUCCEEDING:
        return
    notes["failure_streak"] = notes.get("failure_streak", 0) + 1
    notes["last_failure"] = hidden(pod).get("finished", time.time())
    action, message = failure_action(job, pod)
    if action == "FailJob":
        notes.setdefault("fail_job", message)
    if action != "Ignore":
        status["failed"] = status.get("failed", 0) + 1


def failure(job: Object, *, is_late: bool) -> End | None:
    """Return the failure that the counts mean, if any; it goes before any success."""
    if "fail_job" in hidden(job):
        return End(FAILING, "PodFailurePolicy", hidden(job)["fail_job"])
    if job["status"].get("failed", 0) > job["spec"]["backoffLimit"]:
        return BACKOFF
    return DEADLINE if is_late else None


def success(job: Object, pods: list[Object]) -> End | None:
    """Return the success that the counts mean, if any."""
    spec, status, notes = job["spec"], job["status"], hidden(job)
    rule = success_met(job, set(notes.get("done", [])))
    if rule is not None:
        return End(SUCCEEDING, "SuccessPolicy", f"Matched rules at index {rule}")
    completions, succeeded = spec.get("completions"), status.get("succeeded", 0)
    # Without a number of completions one success ends the work, once nobody is at it any more.
    enough = succeeded > 0 and not active_pods(pods)
    is_done = enough if completions is None else succeeded >= completions
    return REACHED if is_done else None


def finish(job: Object, store: Store) -> None:
    """Turn the criterion into the end."""
    criterion = pending_end(job)
    row = condition(job, criterion or "")
    assert row is not None
    kind = "Complete" if criterion == SUCCEEDING else "Failed"
    set_condition(job, kind, "True", row["reason"], row.get("message", ""))
    hidden(job)["finished"] = time.time()
    if kind == "Complete":
        job["status"]["completionTime"] = rfc3339()
        record_event(store, job, "Completed", "Job completed", by="job-controller")
    else:
        warn(store, job, row["reason"], row.get("message", ""), by="job-controller")
