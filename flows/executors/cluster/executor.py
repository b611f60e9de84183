"""Stages as Kubernetes Jobs: one per identity, followed to its end, taken over where one runs already.

Status polls are the truth, a watch only wakes the loop: a quiet watch can be dead.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afm.jsonl import read_json
from flows.environment import pod_environment
from flows.executors import Job, Outcome, OutcomeKind
from flows.executors.cluster.api import Api, ClusterError
from flows.executors.cluster.logs import LogFiles, PodLog, clear_logs, wait_for_all
from flows.executors.cluster.manifest import (
    headless_service,
    job_name,
    needs_of,
    require_home,
    stage_job,
)
from flows.executors.cluster.settings import Settings, read_settings
from flows.executors.cluster.verdict import (
    Waiting,
    has_started,
    is_finished,
    outcome_of,
    pending_since,
    waiting_for,
)
from flows.executors.cluster.watch import Bell
from flows.executors.echo import Echo, tail
from stages._stage import EXIT_FILE

TICK_S = 0.2
"""How often the caller's `tick` runs and the log is passed on [s]."""
LOG_TIMEOUT_S = 30.0
"""How long the rest of the output may take to arrive after a job's end [s]."""
GONE_TIMEOUT_S = 60.0
"""Beyond the grace period, until a deleted job's pods are gone [s]."""

Object = dict[str, Any]


class KubernetesExecutor:
    """Runs stages as Jobs of the namespace that the settings, the kubeconfig or the pod names."""

    name = "kubernetes"

    def __init__(self, root: Path | None = None) -> None:
        """Read the settings of the checkout in `root`, default the current folder; ask nothing of the cluster yet.

        Raises:
            UserError: the settings are malformed.
        """
        self._root = root or Path.cwd()
        self._settings: Settings = read_settings(self._root)
        self._tick: Callable[[], None] = lambda: None
        self._made: Api | None = None
        self._echo: Echo | None = None

    def previous(self, job: Job) -> Outcome | None:
        """Return how the last attempt ended, or None where there was none. Called with the lock held."""
        found = self._settled(job)
        if found is not None:
            return self._judge(job, found) if is_finished(found) else None
        exit_file = job.scratch / EXIT_FILE
        if not exit_file.exists():
            return None
        code = int(read_json(exit_file)["code"])
        kind = OutcomeKind.SUCCEEDED if code == 0 else OutcomeKind.FAILED
        return Outcome(kind=kind, exit_code=code, log_tail=tail(job.log) if code else "")

    def is_active(self, job: Job) -> bool:
        """Tell whether a Job of this identity runs or waits, whoever created it."""
        found = self._settled(job)
        return found is not None and not is_finished(found)

    def _settled(self, job: Job) -> Object | None:
        """Return the Job of this identity, or None; one that is being deleted is waited for, since it may still write.

        Raises:
            UserError: it writes to another home folder.
        """
        found = self._api.find(self._job_path(job))
        if found is not None and "deletionTimestamp" in found["metadata"]:
            self._wait_until_gone(job)
            return None
        if found is not None:
            require_home(job, found)
        return found

    def run(self, job: Job, lock: int, tick: Callable[[], None]) -> Outcome:
        """Create the Job, or take over the one that runs, pass its output on, and wait for its end.

        Raises:
            KeyboardInterrupt: after the Job has been ended.
            UserError: the manifest cannot be made from the settings.
            ClusterError: the API refused, or stayed away too long; the Job, if there is one, goes on.
        """
        self._tick = tick
        try:
            fresh = not self.is_active(job)
            if fresh:
                self._create(job)
            return self._follow(job, fresh)
        except KeyboardInterrupt:
            self.cancel(job)
            raise

    def watch(self, job: Job) -> bool:
        """Pass on what the submit that follows this job has written to its log since the last call."""
        self._echo = self._echo or Echo(job.log, from_start=False)
        self._echo.step()
        time.sleep(TICK_S)
        return True

    def cancel(self, job: Job) -> None:
        """End the Job with its pods and see them gone; nothing where none runs."""
        self._api.delete(self._job_path(job), propagationPolicy="Foreground")
        self._wait_until_gone(job)

    @property
    def _api(self) -> Api:
        if self._made is None:
            self._made = Api(patience_s=self._settings.outage_s, pause=self._pause, warn=_say)
        return self._made

    @property
    def _namespace(self) -> str:
        return self._settings.namespace or self._api.namespace

    def _pause(self, seconds: float) -> None:
        """Wait while the caller may still interrupt."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._tick()
            time.sleep(min(TICK_S, left))

    def _jobs_path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace}/jobs"

    def _job_path(self, job: Job) -> str:
        return f"{self._jobs_path()}/{job_name(job)}"

    def _core(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}"

    def _create(self, job: Job) -> None:
        """Create the Job; an older one of its name has ended and makes way."""
        manifest = stage_job(job, self._settings, _environment(job), self._root)
        if self._api.find(self._job_path(job)) is not None:
            self._api.delete(self._job_path(job), propagationPolicy="Foreground")
            self._wait_until_gone(job)
        (job.scratch / EXIT_FILE).unlink(missing_ok=True)
        clear_logs(job.log)
        try:
            created = self._api.create(self._jobs_path(), manifest)
        except ClusterError as error:
            if (
                error.status != 409
            ):  # another run asked for the same result, or our own request came through
                raise
            return
        if needs_of(job, self._settings).nodes > 1:
            self._create_service(job, created)

    def _create_service(self, job: Job, owner: Object) -> None:
        service = headless_service(job)
        service["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
        ]
        try:
            self._api.create(self._core("services"), service)
        except ClusterError as error:
            if error.status != 409:
                raise

    def _follow(self, job: Job, fresh: bool) -> Outcome:
        """Look at the Job until it has ended; a look comes when the watch rings, and at least every `poll_s`."""
        files = LogFiles(job.log)
        self._echo = Echo(job.log, from_start=fresh)
        logs: dict[str, PodLog] = {}
        selector = f"batch.kubernetes.io/job-name={job_name(job)}"
        with Bell(self._api, [self._jobs_path(), self._core("pods")], job_name(job)) as bell:
            while True:
                found = self._api.find(self._job_path(job))
                if found is None:
                    return self._vanished(job, logs)
                pods = self._api.get(self._core("pods"), labelSelector=selector)["items"]
                self._follow_logs(files, pods, logs)
                if is_finished(found):
                    self._drain(logs)
                    return self._judge(job, found)
                waiting = self._overdue(job, found, pods)
                if waiting is not None:
                    self.cancel(job)
                    return Outcome(kind=waiting.kind, reason=waiting.reason)
                self._idle(bell)

    def _idle(self, bell: Bell) -> None:
        deadline = time.monotonic() + self._settings.poll_s
        while not bell.rang() and time.monotonic() < deadline:
            assert self._echo is not None
            self._echo.step()
            self._tick()
            time.sleep(TICK_S)

    def _follow_logs(self, files: LogFiles, pods: list[Object], logs: dict[str, PodLog]) -> None:
        """Follow each pod once."""
        for pod in pods:
            name = pod["metadata"]["name"]
            if name in logs or not has_started(pod):
                continue
            index = (pod["metadata"].get("annotations") or {}).get(
                "batch.kubernetes.io/job-completion-index", "0"
            )
            logs[name] = PodLog(self._api, f"{self._core('pods')}/{name}", files.of(index))
            logs[name].start()

    def _drain(self, logs: dict[str, PodLog]) -> None:
        if not wait_for_all(list(logs.values()), LOG_TIMEOUT_S, self._tick):
            _say("the end of the output has not arrived")
        for log in logs.values():
            log.abandon()
        assert self._echo is not None
        self._echo.step()

    def _vanished(self, job: Job, logs: dict[str, PodLog]) -> Outcome:
        """Somebody deleted the Job, or its time to live passed while nobody could look: its exit code decides."""
        self._drain(logs)
        self._wait_until_gone(job)
        previous = self.previous(job)
        if previous is not None and previous.kind is OutcomeKind.SUCCEEDED:
            return previous
        return Outcome(
            kind=OutcomeKind.CANCELLED, log_tail=tail(job.log), reason="the Job was deleted"
        )

    def _judge(self, job: Job, found: Object) -> Outcome:
        selector = f"batch.kubernetes.io/job-name={job_name(job)}"
        pods = self._api.get(self._core("pods"), labelSelector=selector)["items"]
        return outcome_of(found, pods, tail(job.log))

    def _overdue(self, job: Job, found: Object, pods: list[Object]) -> Waiting | None:
        """Tell why a Job has not started within the pending deadline; None while it may still."""
        since = pending_since(found)
        if since is None or any(map(has_started, pods)):
            return None
        overdue = time.time() - since > self._settings.pending_deadline_s
        return self._explain_waiting(job, pods) if overdue else None

    def _explain_waiting(self, job: Job, pods: list[Object]) -> Waiting:
        selector = f"involvedObject.name={job_name(job)}"
        events = self._api.get(self._core("events"), fieldSelector=selector)["items"]
        seconds = self._settings.pending_deadline_s
        return waiting_for(pods, events) or Waiting(
            kind=OutcomeKind.UNSCHEDULABLE, reason=f"no pod ran within {seconds} s"
        )

    def _wait_until_gone(self, job: Job) -> None:
        """Wait until neither the Job nor a pod of it is there."""
        timeout_s = self._settings.profile(job.stage).grace_s + GONE_TIMEOUT_S
        selector = f"batch.kubernetes.io/job-name={job_name(job)}"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            pods = self._api.get(self._core("pods"), labelSelector=selector)["items"]
            if not pods and self._api.find(self._job_path(job)) is None:
                return
            time.sleep(TICK_S)
        raise ClusterError(
            f"{job_name(job)} and its pods are still there {timeout_s:.0f} s after the deletion; "
            "a node may be lost: look at `kubectl get pods`"
        )


def _environment(job: Job) -> dict[str, str]:
    return pod_environment(stage=job.stage, home=job.home, workspace=job.workspace)


def _say(text: str) -> None:
    print(f"submit: {text}", flush=True)
