"""Following one Job to its end: output, waiting reasons, deadlines, verdict.

Status polls are the truth, a watch only wakes the loop: a quiet watch can be dead.
"""

import time
from collections.abc import Callable
from typing import Any

from flows.executors import Job, Outcome, OutcomeKind
from flows.executors.cluster.jobs import Jobs
from flows.executors.cluster.logs import LogFiles, PodLog, wait_for_all
from flows.executors.cluster.manifest import job_name
from flows.executors.cluster.settings import Settings
from flows.executors.cluster.verdict import (
    Waiting,
    has_started,
    is_finished,
    lost_since,
    outcome_of,
    rank_of,
    waiting_for,
    waiting_since,
)
from flows.executors.cluster.watch import Bell
from flows.executors.echo import Echo, tail

TICK_S = 0.2
"""How often the caller's `tick` runs and the log is passed on [s]."""
LOG_TIMEOUT_S = 30.0
"""How long the rest of the output may take to arrive after a Job's end [s]."""

Object = dict[str, Any]


class Deserted(Exception):
    """What a Job asks has ended while the Job waited in a queue."""


class Follower:
    """One Job, from now until it has ended or cannot start."""

    def __init__(
        self,
        job: Job,
        jobs: Jobs,
        settings: Settings,
        *,
        fresh: bool,
        tick: Callable[[], None],
        say: Callable[[str], None],
        served: Callable[[], bool],
    ) -> None:
        """Follow the Job of `job`; `fresh` if nothing of its output has been shown before.

        `served` tells whether the endpoints that it asks are there; only a Job that waits in a queue is asked about.
        """
        self._job, self._jobs, self._settings = job, jobs, settings
        self._name, self._tick, self._say = job_name(job), tick, say
        self._files = LogFiles(job.log)
        self._echo = Echo(job.log, from_start=fresh)
        self._served = served
        self._logs: dict[str, PodLog] = {}
        grace_s = settings.profile(job.stage).grace_s
        self._patience = Patience(self._name, jobs, settings, grace_s, say)

    def follow(self) -> Outcome | None:
        """Return how it ended; None where the Job is gone and only its exit code can tell.

        Raises:
            Deserted: it would not find its endpoints any more.
        """
        with Bell(self._jobs.api, [self._jobs.path, self._jobs.core("pods")], self._name) as bell:
            while True:
                found = self._jobs.find(self._name)
                if found is None:
                    self._drain()
                    return None
                pods = self._jobs.pods(self._name)
                self._follow_logs(pods)
                if is_finished(found):
                    self._drain()
                    return outcome_of(found, self._jobs.pods(self._name), tail(self._job.log))
                if found["spec"].get("suspend") and not self._served():
                    raise Deserted
                hopeless = self._patience.given_up(found, pods)
                if hopeless is not None:
                    return hopeless
                self._idle(bell)

    def _idle(self, bell: Bell) -> None:
        deadline = time.monotonic() + self._settings.poll_s
        while not bell.rang() and time.monotonic() < deadline:
            self._echo.step()
            self._tick()
            time.sleep(TICK_S)

    def _follow_logs(self, pods: list[Object]) -> None:
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in self._logs and has_started(pod):
                path = f"{self._jobs.core('pods')}/{name}"
                self._logs[name] = PodLog(self._jobs.api, path, self._files.of(rank_of(pod)))
                self._logs[name].start()

    def _drain(self) -> None:
        if not wait_for_all(list(self._logs.values()), LOG_TIMEOUT_S, self._tick):
            self._say("the end of the output has not arrived")
        for log in self._logs.values():
            log.abandon()
        self._echo.step()


class Patience:
    """How long a Job may have no running pod, and what is said meanwhile."""

    def __init__(
        self, name: str, jobs: Jobs, settings: Settings, grace_s: float, say: Callable[[str], None]
    ) -> None:
        """Watch the Job `name`, whose pods take `grace_s` to end."""
        self._name, self._jobs, self._settings = name, jobs, settings
        self._grace_s, self._say = grace_s, say
        self._told: set[str] = set()
        self._seen_waiting: float | None = None

    def given_up(self, found: Object, pods: list[Object]) -> Outcome | None:
        """Tell why a Job does not run, and end it after the pending deadline; None while there is hope."""
        lost = lost_since(pods, time.time())
        since = self._waiting_since(found, pods) if lost is None else lost
        if since is None:
            return None
        why = self._why(pods) if lost is None else _LOST
        if why is not None and why.reason not in self._told:
            self._told.add(why.reason)
            self._say(f"waiting: {why.kind}: {why.reason}")
        if time.time() - since <= self._settings.pending_deadline_s:
            return None
        if lost is None:
            self._jobs.delete(self._name, self._grace_s)
        why = why or _SILENT
        return Outcome(kind=why.kind, reason=why.reason)

    def _waiting_since(self, found: Object, pods: list[Object]) -> float | None:
        """Count from what was seen, not from the Job's stamps alone, which can be hours old without a fault.

        A Job that a queue has just let go has no start yet, and that of a drained node has no pod for a moment.
        """
        since = waiting_since(found, pods)
        if since is None:
            self._seen_waiting = None
            return None
        if self._seen_waiting is None:
            self._seen_waiting = time.time()
        return max(since, self._seen_waiting)

    def _why(self, pods: list[Object]) -> Waiting | None:
        names = [self._name, *(pod["metadata"]["name"] for pod in pods if not has_started(pod))]
        return waiting_for(pods, [event for name in names for event in self._jobs.events(name)])


_SILENT = Waiting(kind=OutcomeKind.UNSCHEDULABLE, reason="no pod started, and nothing tells why")
_LOST = Waiting(
    kind=OutcomeKind.EVICTED,
    reason="the node of the pod is lost, and the Job waits for it; when the machine is surely off, "
    "`kubectl delete pod --force` lets the Job go on elsewhere",
)
