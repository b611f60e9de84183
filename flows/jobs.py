"""The jobs of a home folder: which run, which ended, which finished."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from afm.errors import UserError
from flows.attempts import ATTEMPT, Attempt
from flows.executors import Job
from flows.locks import IdentityLock
from flows.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """One identity that has been started here."""

    identity: str
    cell: str
    state: str
    """`running`, `finished` (its result is in the store) or `ended` (it failed, was ended, or awaits collection)."""
    started: float
    """[s] since 1970."""
    log: Path


def list_jobs(workspace: Workspace) -> list[JobState]:
    """Return every identity with a scratch folder, oldest first."""
    scratches = (workspace.home / ".scratch").glob(f"*/{ATTEMPT}")
    jobs = [_state(workspace, path.parent) for path in scratches]
    return sorted((job for job in jobs if job is not None), key=lambda job: job.started)


def _state(workspace: Workspace, scratch: Path) -> JobState | None:
    try:
        attempt = Attempt.model_validate_json((scratch / ATTEMPT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None
    finished = (workspace.results / scratch.name / "manifest.json").exists()
    idle = "finished" if finished else "ended"
    return JobState(
        identity=scratch.name,
        cell=attempt.cell,
        state="running" if is_active(scratch) else idle,
        started=attempt.started,
        log=scratch / "log",
    )


def is_active(scratch: Path) -> bool:
    """Tell whether a job or a submit of this result is at work."""
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
