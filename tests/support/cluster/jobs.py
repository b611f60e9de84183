"""The Job controller."""

import time

from tests.support.cluster.conditions import holds, set_condition
from tests.support.cluster.creation import PODS, create, pod_of_job
from tests.support.cluster.deletion import TRACKING, delete, delete_pod, pods_of, release
from tests.support.cluster.errors import ApiError
from tests.support.cluster.events import record_event, warn
from tests.support.cluster.job_status import (
    active_pods,
    count_ended,
    failure,
    finish,
    index_of,
    is_finished,
    may_judge_end,
    pending_end,
    success,
)
from tests.support.cluster.store import HIDDEN, Object, Store, hidden, key_of, rfc3339

BACKOFF_S = 10.0
BACKOFF_MAX_S = 600.0
CREATE_RETRY_S = 1.0
CREATE_RETRY_MAX_S = 60.0
BY = "job-controller"


class JobController:
    """Brings each Job one step nearer to what it asks for."""

    def __init__(self, store: Store, time_scale: float) -> None:
        self._store = store
        self._scale = time_scale

    def sync(self) -> None:
        for job in list(self._store.each("jobs")):
            if _is_settled(job):
                continue
            fresh = self._store.find(*key_of("jobs", job))
            if fresh is None or fresh["metadata"].get("deletionTimestamp"):
                continue
            if is_finished(fresh):
                self._after_end(fresh)
            else:
                self._sync_live(fresh)

    def _after_end(self, job: Object) -> None:
        for pod in pods_of(self._store, job):
            release(pod)
            self._store.put("pods", pod)
        if "settled" not in hidden(job):
            hidden(job)["settled"] = True
            self._store.put("jobs", job)
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is not None and time.time() >= hidden(job)["finished"] + ttl_s:
            delete(self._store, "jobs", job, {"propagationPolicy": "Foreground"})

    def _sync_live(self, job: Object) -> None:
        pods = pods_of(self._store, job)
        ended = count_ended(job, pods)
        if pending_end(job) is not None:
            self._end_pods(job, pods)
            if may_judge_end(pods):
                finish(job, self._store)
        elif job["spec"].get("suspend"):
            self._suspend(job, pods)
        else:
            self._run(job, pods)
        self._write(job)
        for pod in ended:
            if self._store.find(*key_of("pods", pod)):
                release(pod)
                self._store.put("pods", pod)

    def _end_pods(self, job: Object, pods: list[Object]) -> None:
        for pod in active_pods(pods):
            delete_pod(self._store, pod)

    def _suspend(self, job: Object, pods: list[Object]) -> None:
        for pod in active_pods(pods):
            release(pod)  # a pod that suspension ends is no failure
            pod = self._store.put("pods", pod)
            delete_pod(self._store, pod)
        if not holds(job, "Suspended"):
            set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
            record_event(self._store, job, "Suspended", "Job suspended", by=BY)
        job["status"].pop("startTime", None)
        hidden(job).pop("started", None)

    def _run(self, job: Object, pods: list[Object]) -> None:
        if holds(job, "Suspended"):
            set_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
            record_event(self._store, job, "Resumed", "Job resumed", by=BY)
        if "started" not in hidden(job):
            hidden(job)["started"] = time.time()
            job["status"]["startTime"] = rfc3339()
        end = failure(job, is_late=self._is_late(job)) or success(job, pods)
        if end is not None:
            set_condition(job, end.criterion, "True", end.reason, end.message)
        else:
            self._manage(job, pods)

    def _is_late(self, job: Object) -> bool:
        limit_s = job["spec"].get("activeDeadlineSeconds")
        return limit_s is not None and time.time() >= hidden(job)["started"] + limit_s

    def _manage(self, job: Object, pods: list[Object]) -> None:
        spec, active = job["spec"], active_pods(pods)
        done = job["status"].get("succeeded", 0)
        terminating = len(may_come_back(pods)) if spec["podReplacementPolicy"] == "Failed" else 0
        completions = spec.get("completions")
        if completions is None:
            wanted = len(active) if done else spec["parallelism"]
        else:
            wanted = min(spec["parallelism"], completions - done)
        for pod in active[::-1][: max(len(active) - wanted, 0)]:
            release(pod)
            delete_pod(self._store, self._store.put("pods", pod))
        missing = wanted - len(active) - terminating
        if missing > 0 and time.time() >= self._create_at(job):
            self._create(job, pods, missing)

    def _create_at(self, job: Object) -> float:
        notes = hidden(job)
        at: float = notes.get("create_retry_at", 0.0)
        if streak := notes.get("failure_streak", 0):
            delay_s = min(BACKOFF_S * 2 ** (streak - 1), BACKOFF_MAX_S) * self._scale
            at = max(at, notes["last_failure"] + delay_s)
        return at

    def _create(self, job: Object, pods: list[Object], count: int) -> None:
        for index in self._indexes(job, pods, count):
            notes = hidden(job)
            try:
                pod = create(
                    self._store, PODS, job["metadata"]["namespace"], pod_of_job(job, index)
                )
            except ApiError as error:
                tries = notes.get("create_failures", 0)
                delay_s = min(CREATE_RETRY_S * 2**tries, CREATE_RETRY_MAX_S) * self._scale
                notes |= {"create_failures": tries + 1, "create_retry_at": time.time() + delay_s}
                warn(self._store, job, "FailedCreate", f"Error creating: {error.message}", by=BY)
                return
            notes.pop("create_failures", None)
            name = pod["metadata"]["name"]
            record_event(self._store, job, "SuccessfulCreate", f"Created pod: {name}", by=BY)

    def _indexes(self, job: Object, pods: list[Object], count: int) -> list[int | None]:
        if job["spec"]["completionMode"] != "Indexed":
            return [None] * count
        busy = set(hidden(job).get("done", []))
        careful = job["spec"]["podReplacementPolicy"] == "Failed"
        kept = active_pods(pods) + (may_come_back(pods) if careful else [])
        busy |= {index_of(pod) for pod in kept}
        free = [index for index in range(job["spec"]["completions"]) if index not in busy]
        return list(free[:count])

    def _write(self, job: Object) -> None:
        pods = pods_of(self._store, job)
        active = active_pods(pods)
        status = job["status"]
        if not pods and "create_failures" in hidden(job) and not status.get("failed"):
            # No pod could ever be made: the controller gives up this round before it writes a status.
            status.pop("startTime", None)
            hidden(job).pop("started", None)
            self._store.put("jobs", job)
            return
        counts = {
            "active": len(active),
            "ready": sum(holds(pod, "Ready") for pod in active),
            "terminating": len(may_come_back(pods)),
        }
        status.update(counts)
        if not status["active"]:
            del status["active"]
        if is_finished(job):
            status["terminating"] = status["ready"] = 0
        self._store.put("jobs", job)


def _is_settled(job: Object) -> bool:
    """Nothing is left to do for a Job: it has ended, its pods are released, its time to live is not over."""
    notes, ttl_s = job[HIDDEN], job["spec"].get("ttlSecondsAfterFinished")
    return "settled" in notes and (ttl_s is None or time.time() < notes["finished"] + ttl_s)


def may_come_back(pods: list[Object]) -> list[Object]:
    """Pods that are being deleted and have not ended yet."""
    return [
        pod
        for pod in pods
        if pod["metadata"].get("deletionTimestamp")
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
        and TRACKING in pod["metadata"].get("finalizers", [])
    ]
