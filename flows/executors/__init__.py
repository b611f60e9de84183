"""Running one stage command somewhere. An executor is one module here and one line in `EXECUTORS`."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from afm.errors import UserError
from afm.params.endpoints import EndpointParams
from stages._stage import Environment

EXECUTORS = {
    "local": "flows.executors.local:LocalExecutor",
    "kubernetes": "flows.executors.cluster.executor:KubernetesExecutor",
}
"""Class by the value of AFM_EXECUTOR; named, not imported, since one may bring a heavy client."""


class OutcomeKind(StrEnum):
    """Why a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OOM = "oom"
    EVICTED = "evicted"
    DEADLINE = "deadline"
    UNSCHEDULABLE = "unschedulable"
    QUOTA = "quota"
    IMAGE = "image"
    DISK = "disk"
    """It failed because the disk was full."""
    CANCELLED = "cancelled"


class ClusterError(RuntimeError):
    """A cluster refused a request, or did not answer for longer than we are patient."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """Keep the HTTP status; None where there was no answer."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended."""

    kind: OutcomeKind
    exit_code: int | None = None
    """Of the stage's process; None where nobody saw it, negative for a signal."""
    log_tail: str = ""
    reason: str = ""
    """Why, in the words of whoever ended or refused it; empty where the kind says it all."""
    job: str | None = None
    """Name of the Job; None for a process of this machine."""
    images: tuple[str, ...] = ()
    """Digests of the images that ran, as the nodes report them."""
    gpus: int | None = None
    """What the Job asked for; None where nobody counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNeeds:
    """What a scale takes of a cluster; changes no result."""

    nodes: int = 1
    gpus_per_node: int = 0
    gpu_product: str | None = None
    priority_class: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedEndpoint:
    """A model that a stage asks over HTTP, under its name in params.yaml."""

    name: str
    params: EndpointParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One stage command to run."""

    identity: str
    stage: str
    cell: str
    environment: Environment
    arguments: tuple[str, ...]
    """The stage's flags; paths are relative to the workspace."""
    workspace: Path
    home: Path
    scratch: Path
    partial: Path
    """Folder that holds the outputs until they are sealed."""
    cluster: ClusterNeeds | None = None
    """Of the cell's scale; None for a cell without one."""
    pipeline_run: str | None = None
    """Which run of the flow asks for it; None by hand."""
    endpoints: tuple[NamedEndpoint, ...] = ()
    """Models that it asks; those with `serve:` run beside it where the executor can do that."""

    @property
    def log(self) -> Path:
        """Everything the stage prints."""
        return self.scratch / "log"


class Executor(Protocol):
    """Runs jobs. One process at a time holds a job's lock and may call `run`; others may `watch`."""

    name: str

    def constraints(self, environment: Environment, home: Path) -> str:
        """Return the name of the constraints file that the environment of a stage was made from."""

    def previous(self, job: Job) -> Outcome | None:
        """Return how the last attempt ended, or None where there was none. Called with the lock held."""

    def is_active(self, job: Job) -> bool:
        """Tell whether the job runs or waits although nobody holds its lock. Called with the lock held."""

    def run(self, job: Job, lock: int, tick: Callable[[], None]) -> Outcome:
        """Start the job, or take over the one that runs, pass its output on, and wait for its end.

        Args:
            job: what to run.
            lock: descriptor of the lock; a job on this machine inherits it.
            tick: called while waiting; may raise to leave the job alone.

        Raises:
            KeyboardInterrupt: after the job has been ended on purpose.
        """

    def watch(self, job: Job) -> bool:
        """Pass on what a job that another process started has printed since the last call.

        Returns:
            Whether it runs; False while only its lock is still held.
        """

    def active(self) -> frozenset[str]:
        """Return the identities of all jobs that run or wait although nobody holds their lock.

        Raises:
            ClusterError: it cannot be told.
        """

    def cancel(self, job: Job) -> None:
        """End the job and every process it started; nothing where none runs."""

    def tidy(self, *, dry_run: bool) -> list[str]:
        """End what ran beside jobs and is of no use to any; returns what that is.

        Raises:
            ClusterError: it cannot be told.
        """


def make_executor(environ: Mapping[str, str]) -> Executor:
    """Return the executor that AFM_EXECUTOR names; default local.

    Raises:
        UserError: there is no such executor.
    """
    name = environ.get("AFM_EXECUTOR") or "local"
    if name not in EXECUTORS:
        raise UserError(f"AFM_EXECUTOR={name!r} is unknown; allowed: {', '.join(EXECUTORS)}")
    module, _, attribute = EXECUTORS[name].partition(":")
    executor: Executor = getattr(importlib.import_module(module), attribute)()
    return executor
