"""Model servers for stages: started before the first stage that needs them, shared, ended after the last.

Who uses an endpoint is told by the stages' Jobs alone (a label), so that a runner's death changes nothing. Its Lease
covers what no Job shows yet: from the look at the endpoint until the stage's Job exists. Whoever finds neither an
active Job nor a live lease ends it.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.executors import ClusterError, Job, NamedEndpoint, Outcome, OutcomeKind
from flows.executors.cluster.endpoint_manifest import (
    COMPONENT,
    endpoint_job,
    endpoint_name,
    endpoint_service,
    served,
)
from flows.executors.cluster.follow import Patience
from flows.executors.cluster.jobs import Jobs
from flows.executors.cluster.leases import Leases
from flows.executors.cluster.manifest import consumer_label, needs_of
from flows.executors.cluster.quota import FITS, Verdict, Wish, judge, uncounted
from flows.executors.cluster.settings import Settings
from flows.executors.cluster.verdict import (
    condition,
    is_finished,
    is_ready,
    outcome_of,
    termination,
)

QUOTA_LEASE = "afm-gpu-quota"
"""Held while GPUs are counted and promised, so that two runners do not count the same ones."""
CLAIMED = "afm.dev/claimed"
"""Annotation that each new user changes."""
MANAGED = "app.kubernetes.io/managed-by=afm"
POLL_S = 2.0
FORBIDDEN, CONFLICT = 403, 409

Object = dict[str, Any]


class Endpoints:
    """The endpoints of one namespace, as one runner sees them."""

    def __init__(
        self,
        jobs: Jobs,
        settings: Settings,
        root: Path,
        pause: Callable[[float], None],
        say: Callable[[str], None],
    ) -> None:
        """Use the templates of the checkout `root`; `pause` may raise to give up."""
        self._settings, self._root, self._say = settings, root, say
        self._pause_only = pause
        self._jobs = Jobs(jobs.api, jobs.namespace, self._pause)
        self._leases = Leases(jobs.api, jobs.namespace, settings.endpoints.lease_s, pause)
        self._told: set[str] = set()

    def ensure(self, job: Job) -> Outcome | None:
        """Have the endpoints of a stage answer; their leases are held until `release`.

        Returns:
            None where they answer; else why the stage cannot be started.
        """
        wanted = {endpoint_name(one, self._settings): one for one in served_ones(job)}
        while True:
            for name in sorted(wanted):
                self._leases.acquire(name, partial(self._tell_of_another, name))
            verdict = self._begin(job, wanted)
            if not verdict.ever:
                return Outcome(kind=OutcomeKind.QUOTA, reason=verdict.reason)
            if verdict.now:
                refused, ready = self._wait_for_all(wanted)
                if ready or refused is not None:
                    return refused
            self.release()
            if not verdict.now:
                self._tell(f"waiting: quota: {verdict.reason}")
                self.sweep()  # what a runner that has died left behind may hold the GPUs
                self._pause(self._settings.poll_s)

    def stand(self, job: Job) -> bool:
        """Tell whether the endpoints of a stage are still there, now that its Job shows that they are used."""
        names = [endpoint_name(one, self._settings) for one in served_ones(job)]
        return all(_is_usable(self._jobs.find(name)) for name in names)

    def release(self) -> None:
        """Give all leases back."""
        for name in list(self._leases.held):
            self._leases.release(name)

    def unused(self) -> list[str]:
        """Return the endpoints that no active Job uses; somebody may be about to."""
        names = [one["metadata"]["name"] for one in self._jobs.labelled(COMPONENT)]
        return [name for name in names if not self._is_used(name)]

    def sweep(self) -> list[str]:
        """End the endpoints that nobody uses or is about to use; returns their names."""
        return [name for name in self.unused() if self._end(name)]

    def _end(self, name: str) -> bool:
        """End an endpoint that nobody uses; tell whether we did.

        Where somebody holds its lease, he does: a runner that starts a stage looks at its end, and one that looks as we
        do looks once more after giving the lease back, in case its last user has ended meanwhile and met the lease.
        """
        while not self._is_used(name):
            if not self._leases.try_acquire(name):
                return False
            try:
                found = self._jobs.find(name)
                if found is None:
                    return False
                if not self._is_used(name) and self._delete(found):
                    return True
            finally:
                self._leases.release(name)
        return False

    def _is_used(self, name: str) -> bool:
        return any(not is_finished(one) for one in self._jobs.labelled(consumer_label(name)))

    def _delete(self, found: Object) -> bool:
        """Delete a Job as it was found, with its Service; tell whether it was still so.

        Whoever begins to use one changes it, so a deletion that an outage has delayed does not hit him.
        """
        meta = found["metadata"]
        grace_s = self._settings.endpoints.grace_s
        try:
            self._jobs.delete(meta["name"], grace_s, resourceVersion=meta["resourceVersion"])
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            return False
        self._jobs.api.delete(f"{self._jobs.core('services')}/{meta['name']}")
        return True

    def _begin(self, job: Job, wanted: Mapping[str, NamedEndpoint]) -> Verdict:
        """Count GPUs, and where all fit, create what is missing and promise the stage its own."""
        missing = [one for name, one in wanted.items() if not self._claim(name)]
        own = stage_gpus(job, self._settings)
        self._leases.acquire(QUOTA_LEASE)
        try:
            verdict = self._judge(job, missing, own, [*wanted.values()])
            if verdict.now:
                for one in missing:
                    self._create(one, job)
                self._leases.reserve(min(wanted), own)
        finally:
            self._leases.release(QUOTA_LEASE)
        return verdict

    def _claim(self, name: str) -> bool:
        """Mark an endpoint that stands as ours to use; clear one away that has ended. Tells whether one stands."""
        found = self._jobs.find(name)
        if found is None:
            return False
        if _is_usable(found):
            self._jobs.note(name, **{CLAIMED: uuid.uuid4().hex})
            return _is_usable(self._jobs.find(name))
        if "deletionTimestamp" in found["metadata"]:
            self._jobs.wait_until_gone(name, self._settings.endpoints.grace_s)
        else:
            self._delete(found)
        return False

    def _create(self, one: NamedEndpoint, job: Job) -> None:
        name = endpoint_name(one, self._settings)
        self._say(f"starting endpoint {one.name!r}: Job {name}")
        manifest = endpoint_job(one, job, self._settings, self._root)
        self._jobs.create(manifest, endpoint_service(name, self._settings))

    def _judge(
        self,
        job: Job,
        missing: Sequence[NamedEndpoint],
        own: int,
        everyone: Sequence[NamedEndpoint],
    ) -> Verdict:
        resource = self._settings.gpu_resource
        gpus = {one.name: served(one).gpus for one in everyone}
        wanted = own + sum(gpus[one.name] for one in missing)
        if not wanted:
            return FITS
        try:
            quotas = self._jobs.api.get(self._jobs.core("resourcequotas"))["items"]
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            self._tell(f"the quotas cannot be seen, so GPUs are not counted first: {error}")
            return FITS
        wish = Wish(
            resource=resource,
            wanted=wanted,
            together=own + sum(gpus.values()),
            coming=uncounted(self._jobs.labelled(MANAGED), resource) + self._leases.reserved(),
            what=" and ".join([job.cell, *(f"endpoint {name!r}" for name in gpus)]),
        )
        return judge(quotas, wish)

    def _wait_for_all(self, wanted: Mapping[str, NamedEndpoint]) -> tuple[Outcome | None, bool]:
        """Wait until all endpoints answer; returns why one never will, and whether all do.

        Neither: somebody has taken a lease over, or one has ended meanwhile; all is to be looked at again.
        """
        grace_s = self._settings.endpoints.grace_s
        waits = {
            name: Patience(name, self._jobs, self._settings, grace_s, self._say) for name in wanted
        }
        while waits:
            for name, patience in list(waits.items()):
                found = self._jobs.find(name)
                if found is None or condition(found, "Complete") or name not in self._leases.held:
                    return None, False
                pods = self._jobs.pods(name)
                refused = self._refusal(found, pods, patience)
                if refused is not None:
                    return replace(
                        refused, reason=f"endpoint {wanted[name].name!r}: {refused.reason}"
                    ), False
                if any(map(is_ready, pods)):
                    self._jobs.serve(found, endpoint_service(name, self._settings))
                    del waits[name]
            if waits:
                self._pause(min(POLL_S, self._settings.poll_s))
        return None, True

    def _refusal(self, found: Object, pods: list[Object], patience: Patience) -> Outcome | None:
        if not is_finished(found):
            return patience.given_up(found, pods)
        ends = [end for end in map(termination, pods) if end is not None]
        said = "\n".join(end.get("message", "") for end in ends[-1:])
        if said:
            self._say(f"the endpoint's last words: {said}")
        return outcome_of(found, pods, said)

    def _pause(self, seconds: float) -> None:
        self._pause_only(seconds)
        self._leases.renew()

    def _tell_of_another(self, name: str) -> None:
        self._tell(f"waiting: another run holds endpoint {name}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def served_ones(job: Job) -> list[NamedEndpoint]:
    """Return the endpoints of a stage that are to be started for it."""
    return [one for one in job.endpoints if one.params.serve is not None]


def stage_gpus(job: Job, settings: Settings) -> int:
    """Return how many GPUs all pods of a stage take together."""
    needs = needs_of(job, settings)
    return needs.nodes * needs.gpus_per_node


def _is_usable(found: Object | None) -> bool:
    return (
        found is not None
        and not is_finished(found)
        and "deletionTimestamp" not in found["metadata"]
    )
