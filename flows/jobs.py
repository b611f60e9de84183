"""The jobs of a home folder: which run, which ended, which finished."""

import sys
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from flows.attempts import Attempt, read_attempts
from flows.executors import ClusterError, Job, make_executor
from flows.locks import IdentityLock
from flows.workspace import Workspace

UNKNOWN = "unknown"
"""State of a job on a cluster that does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """One identity that has been started here."""

    identity: str
    cell: str
    executor: str
    state: str
    """`running`, `finished` (its result is in the store), `ended` (it failed, was ended, or awaits collection), or
    `unknown`."""
    started: float
    """[s] since 1970."""
    log: Path


def list_jobs(workspace: Workspace) -> list[JobState]:
    """Return every identity with a scratch folder, oldest first."""
    attempts = dict(read_attempts(workspace.home))
    elsewhere = _Elsewhere()
    jobs = [_state(workspace, identity, one, elsewhere) for identity, one in attempts.items()]
    return sorted(jobs, key=lambda job: job.started)


class _Elsewhere:
    """What runs beyond this machine; asked once for each executor, and only where it matters."""

    def __init__(self) -> None:
        self._active: dict[str, frozenset[str] | None] = {}

    def state(self, executor: str, identity: str) -> str:
        """Return `running`, `ended` or `unknown`."""
        if executor not in self._active:
            self._active[executor] = self._ask(executor)
        active = self._active[executor]
        if active is None:
            return UNKNOWN
        return "running" if identity in active else "ended"

    @staticmethod
    def _ask(executor: str) -> frozenset[str] | None:
        try:
            return make_executor({"AFM_EXECUTOR": executor}).active()
        except (ClusterError, UserError) as error:
            print(f"cannot tell what runs on {executor}: {error}", file=sys.stderr)
            return None


def _state(
    workspace: Workspace, identity: str, attempt: Attempt, elsewhere: _Elsewhere
) -> JobState:
    scratch = workspace.scratch(identity)
    if is_locked(scratch):
        state = "running"
    elif (workspace.results / identity / "manifest.json").exists():
        state = "finished"
    else:
        state = elsewhere.state(attempt.executor, identity)
    return JobState(
        identity=identity,
        cell=attempt.cell,
        executor=attempt.executor,
        state=state,
        started=attempt.started,
        log=scratch / "log",
    )


def is_locked(scratch: Path) -> bool:
    """Tell whether a submit, or a job of this machine, is at work on this result."""
    lock = IdentityLock(scratch)
    if lock.acquire():
        lock.release()
        return False
    return True


def matching(workspace: Workspace, names: list[str]) -> list[JobState]:
    """Return the jobs that are named by identity, cell or stage.

    Raises:
        UserError: a name fits no job.
    """
    jobs = list_jobs(workspace)
    chosen: list[JobState] = []
    for name in names:
        fitting = [
            job for job in jobs if name in (job.identity, job.cell, job.cell.partition("@")[0])
        ]
        if not fitting:
            known = ", ".join(sorted({job.cell for job in jobs})) or "none"
            raise UserError(f"no job {name!r}; by cell there are: {known}")
        chosen += [job for job in fitting if job not in chosen]
    return chosen


def as_job(workspace: Workspace, state: JobState) -> Job:
    """Return what an executor needs to find a job again."""
    return Job(
        identity=state.identity,
        stage=state.cell.partition("@")[0],
        cell=state.cell,
        environment="pipeline",
        arguments=(),
        workspace=workspace.root,
        home=workspace.home,
        scratch=workspace.scratch(state.identity),
        partial=workspace.results / f"{state.identity}.partial",
    )
