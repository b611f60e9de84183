"""Stages as Kubernetes Jobs: one per identity, followed to its end, taken over where one runs already."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afm.endpoint import address_variable
from afm.jsonl import read_json
from flows.environment import pod_environment
from flows.executors import ClusterError, Job, Outcome, OutcomeKind
from flows.executors.cluster.api import Api
from flows.executors.cluster.endpoint_manifest import endpoint_address, endpoint_name, require_key
from flows.executors.cluster.endpoints import Endpoints, served_ones
from flows.executors.cluster.follow import TICK_S, Deserted, Follower
from flows.executors.cluster.jobs import Jobs
from flows.executors.cluster.logs import clear_logs
from flows.executors.cluster.manifest import (
    headless_service,
    job_name,
    needs_of,
    require_home,
    stage_job,
)
from flows.executors.cluster.settings import read_settings
from flows.executors.cluster.verdict import is_finished, outcome_of
from flows.executors.echo import Echo, tail
from flows.git import require_clean
from stages._stage import EXIT_FILE, EXIT_TERMINATED, Environment

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
        self._settings = read_settings(self._root)
        self._tick: Callable[[], None] = lambda: None
        self._made: Jobs | None = None
        self._echo: Echo | None = None

    def constraints(self, environment: Environment, home: Path) -> str:
        """Return the name that the settings give for the environment's image."""
        return self._settings.constraints[environment]

    def previous(self, job: Job) -> Outcome | None:
        """Return how the last attempt ended, or None where there was none. Called with the lock held.

        One that ended while nobody followed it has left its endpoints running: they are ended.
        """
        found = self._settled(job)
        if found is not None and not is_finished(found):
            return None
        if served_ones(job):
            self._end_unused_endpoints()
        if found is not None:
            return outcome_of(found, self._jobs.pods(job_name(job)), tail(job.log))
        return _written_outcome(job)

    def is_active(self, job: Job) -> bool:
        """Tell whether a Job of this identity runs or waits, whoever created it."""
        found = self._settled(job)
        return found is not None and not is_finished(found)

    def active(self) -> frozenset[str]:
        """Return the identities of all Jobs that run or wait; an API that is away is not waited for."""
        jobs = Jobs(Api(patience_s=0), self._settings.namespace, self._pause)
        return frozenset(jobs.active())

    def _settled(self, job: Job) -> Object | None:
        """Return the Job of this identity, or None; one that is being deleted is waited for, since it may still write.

        Raises:
            UserError: it writes to another home folder.
        """
        found = self._jobs.find(job_name(job))
        if found is None:
            return None
        require_home(job, found)
        if "deletionTimestamp" in found["metadata"]:
            self._jobs.wait_until_gone(job_name(job), self._grace_s(job))
            return None
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
            outcome = self._obtain(job, fresh=not self.is_active(job))
        except KeyboardInterrupt:
            self.cancel(job)
            raise
        if served_ones(job):
            self._end_unused_endpoints()
        return outcome

    def _obtain(self, job: Job, *, fresh: bool) -> Outcome:
        while True:
            refused = self._create(job) if fresh else None
            if refused is not None:
                return refused
            try:
                return self._follow(job, fresh=fresh) or self._after_deletion(job)
            except Deserted:
                _say(
                    "an endpoint has ended while this stage waited in the queue: starting both again"
                )
                self._delete(job)
                fresh = True

    def _follow(self, job: Job, *, fresh: bool) -> Outcome | None:
        endpoints = self._endpoints()
        return Follower(
            job,
            self._jobs,
            self._settings,
            fresh=fresh,
            tick=self._tick,
            say=_say,
            served=lambda: endpoints.stand(job),
        ).follow()

    def watch(self, job: Job) -> bool:
        """Pass on what the submit that follows this job has written to its log since the last call."""
        self._echo = self._echo or Echo(job.log, from_start=False)
        self._echo.step()
        time.sleep(TICK_S)
        return True

    def cancel(self, job: Job) -> None:
        """End the Job with its pods and see them gone, and the endpoints that it alone used."""
        self._delete(job)
        self._end_unused_endpoints()

    def tidy(self, *, dry_run: bool) -> list[str]:
        """End the endpoints that no stage uses, for instance because their runner died; returns what went."""
        endpoints = self._endpoints()
        names = endpoints.unused() if dry_run else endpoints.sweep()
        return [f"endpoint {name}" for name in names]

    def _delete(self, job: Job) -> None:
        self._jobs.delete(job_name(job), self._grace_s(job))

    def _end_unused_endpoints(self) -> None:
        """End them; what keeps us from it takes no result away, and an endpoint without users ends itself."""
        try:
            for name in self._endpoints().sweep():
                _say(f"ended endpoint {name}: no stage uses it")
        except ClusterError as error:
            idle_s = self._settings.endpoints.idle_s
            _say(f"cannot end unused endpoints, each ends itself after {idle_s} s: {error}")

    def _endpoints(self) -> Endpoints:
        return Endpoints(self._jobs, self._settings, self._root, self._pause, _say)

    @property
    def _jobs(self) -> Jobs:
        if self._made is None:
            api = Api(patience_s=self._settings.outage_s, pause=self._pause, warn=_say)
            self._made = Jobs(api, self._settings.namespace, self._pause)
        return self._made

    def _pause(self, seconds: float) -> None:
        """Wait while the caller may still interrupt."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._tick()
            time.sleep(min(TICK_S, left))

    def _grace_s(self, job: Job) -> float:
        return self._settings.profile(job.stage).grace_s

    def _create(self, job: Job) -> Outcome | None:
        """Create the Job, once the endpoints that it asks answer; an older one of its name has ended and makes way.

        Returns:
            Why it cannot be started; None where it is there.

        Raises:
            UserError: the checkout differs from its commit.
        """
        require_clean(self._root)
        endpoints, manifest = self._endpoints(), self._manifest(job)
        if self._jobs.find(job_name(job)) is not None:
            self._delete(job)
        (job.scratch / EXIT_FILE).unlink(missing_ok=True)
        clear_logs(job.log)
        self._end_unused_endpoints()
        is_multi = needs_of(job, self._settings).nodes > 1
        try:
            while True:
                refused = endpoints.ensure(job) if served_ones(job) else None
                if refused is not None:
                    return refused
                self._jobs.create(manifest, headless_service(job) if is_multi else None)
                if endpoints.stand(job):
                    return None
                self._delete(job)
        finally:
            endpoints.release()

    def _manifest(self, job: Job) -> Object:
        environment = pod_environment(stage=job.stage, home=job.home, workspace=job.workspace)
        uses = []
        for one in job.endpoints:
            require_key(one, self._settings)
        for one in served_ones(job):
            environment[address_variable(one.name)] = endpoint_address(one, self._settings)
            uses.append(endpoint_name(one, self._settings))
        return stage_job(job, self._settings, environment, self._root, uses)

    def _after_deletion(self, job: Job) -> Outcome:
        """Somebody deleted the Job, or its time to live passed while nobody could look: its exit code decides."""
        self._jobs.wait_until_gone(job_name(job), self._grace_s(job))
        reason = "the Job was deleted"
        return _written_outcome(job) or Outcome(kind=OutcomeKind.CANCELLED, reason=reason)


def _written_outcome(job: Job) -> Outcome | None:
    """Return what the stage itself wrote about its end; None where it wrote nothing."""
    path = job.scratch / EXIT_FILE
    if not path.exists():
        return None
    code = int(read_json(path)["code"])
    if code == 0:
        return Outcome(kind=OutcomeKind.SUCCEEDED, exit_code=0)
    kind = OutcomeKind.CANCELLED if code == EXIT_TERMINATED else OutcomeKind.FAILED
    return Outcome(kind=kind, exit_code=code, log_tail=tail(job.log))


def _say(text: str) -> None:
    print(f"submit: {text}", flush=True)
