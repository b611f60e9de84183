"""Running a stage as a process of this machine, in a session of its own that outlives whoever started it."""

import contextlib
import os
import select
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from afm.jsonl import read_json, write_json, write_text
from flows.environment import constraints_name, interpreter, job_environment
from flows.executors import Job, Outcome, OutcomeKind
from flows.executors.echo import Echo, tail
from flows.executors.processes import MARK_VARIABLE, end_job, end_members, is_alive
from stages._stage import EXIT_FILE, LOCK_VARIABLE, Environment

POLL_S = 0.1
LONGEST_POLL_S = 1.0
CANCELLED = "cancelled"
"""File in scratch: the attempt was ended on purpose."""


class Attempt(BaseModel):
    """A started stage process, as kept in scratch/job.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mark: str
    """Value of AFM_JOB in each of its processes; unique to the attempt."""
    pid: int | None
    """None in the instant before the process is known."""
    create_time: float | None
    """[s] since 1970, as the kernel tells it."""

    def is_alive(self) -> bool:
        """Tell whether the stage's own process still runs."""
        if self.pid is None or self.create_time is None:
            return True  # being started by whoever holds the lock
        return is_alive(self.pid, self.create_time)


class LocalExecutor:
    """Starts stages on this machine."""

    name = "local"

    def __init__(self) -> None:
        """Follow nothing yet."""
        self._echo: Echo | None = None

    def constraints(self, environment: Environment, home: Path) -> str:
        """Return the name that the installed environment tells."""
        return constraints_name(os.environ, environment, home)

    def previous(self, job: Job) -> Outcome | None:
        """Return how the last attempt ended, or None where there was none. Called with the lock held."""
        if read_attempt(job.scratch) is None:
            return None
        return _outcome(job, _exit_code(job.scratch))

    def is_active(self, job: Job) -> bool:
        """Return False: a stage of this machine holds its own lock."""
        return False

    def active(self) -> frozenset[str]:
        """Return none, for the same reason."""
        return frozenset()

    def run(self, job: Job, lock: int, tick: Callable[[], None]) -> Outcome:
        """Start the stage, pass its output on, and wait for its end.

        Args:
            job: what to run.
            lock: descriptor of the job's lock, which the process inherits.
            tick: called while waiting; may raise to leave the job alone.

        Raises:
            KeyboardInterrupt: after the job has been ended.
        """
        _clear(job)
        self._echo = Echo(job.log, from_start=True)
        try:
            process = _start(job, lock)
            began = time.monotonic()
            with contextlib.closing(End(process)) as end:
                while not end.within(pause(time.monotonic() - began)):
                    self._echo.step()
                    tick()
        except KeyboardInterrupt:
            self.cancel(job)
            raise
        finally:
            self._echo.step()
        _report_leftovers(end_members(_mark_of(job.scratch)))
        # What the stage wrote about its end counts before the process's code: a library may crash at exit.
        written = _exit_code(job.scratch)
        return _outcome(job, (process.returncode or 1) if written is None else written)

    def watch(self, job: Job) -> bool:
        """Pass on what a job that another process started has printed since the last call.

        A stage that was killed may leave forks behind that still hold its lock; they are ended here.

        Returns:
            Whether the stage's own process runs.
        """
        self._echo = self._echo or Echo(job.log, from_start=False)
        self._echo.step()
        attempt = read_attempt(job.scratch)
        alive = attempt is None or attempt.is_alive()
        if attempt is not None and not alive:
            _report_leftovers(end_members(attempt.mark))
        time.sleep(POLL_S)
        return alive

    def cancel(self, job: Job) -> None:
        """End the job and every process it started; nothing where none runs."""
        attempt = read_attempt(job.scratch)
        if attempt is not None:
            write_text(job.scratch / CANCELLED, attempt.mark)
        end_job(attempt.pid if attempt else None, _mark_of(job.scratch))

    def tidy(self, *, dry_run: bool) -> list[str]:
        """Nothing runs beside jobs here: a stage serves for itself, within its own process group."""
        return []


def read_attempt(scratch: Path) -> Attempt | None:
    """Return the last attempt that was started for a result, or None."""
    try:
        return Attempt.model_validate_json((scratch / "job.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


class End:
    """The end of a child, waited for without looking again and again where the system can tell."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for nothing yet."""
        self._process = process
        self._descriptor = _open_pidfd(process.pid)

    def within(self, seconds: float) -> bool:
        """Wait for it; tell whether it came."""
        if self._descriptor is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            poll.poll(seconds * 1000)
        return self._process.poll() is not None

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once a child has ended; None where the system or a container has none."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def pause(running_s: float) -> float:
    """Return how long to look away from a stage [s]: looking costs, and some stages run for days."""
    return min(LONGEST_POLL_S, max(POLL_S, running_s / 20))


def _mark_of(scratch: Path) -> str:
    """The scratch path tells apart equal results that two checkouts of one machine are making."""
    return f"{scratch.resolve()}#"


def _clear(job: Job) -> None:
    """Make way for a new attempt; checkpoints stay. The lock is held, so nobody runs but leftovers of the dead."""
    _report_leftovers(end_members(_mark_of(job.scratch)))
    for name in (EXIT_FILE, CANCELLED, "job.json"):
        (job.scratch / name).unlink(missing_ok=True)
    if job.log.exists():
        job.log.replace(job.log.with_name("log.previous"))


def _start(job: Job, lock: int) -> "subprocess.Popen[bytes]":
    python = interpreter(os.environ, job.environment, job.home)
    environment = job_environment(
        os.environ,
        stage=job.stage,
        environment=job.environment,
        home=job.home,
        workspace=job.workspace,
    )
    mark = f"{_mark_of(job.scratch)}{uuid.uuid4().hex}"
    _write_attempt(job, Attempt(mark=mark, pid=None, create_time=None))
    with job.log.open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", f"stages.{job.stage}", *job.arguments],
            cwd=job.workspace,
            env=environment | {MARK_VARIABLE: mark, LOCK_VARIABLE: str(lock)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
    _write_attempt(job, Attempt(mark=mark, pid=process.pid, create_time=_create_time(process.pid)))
    return process


def _create_time(pid: int) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).create_time()
    return time.time()


def _write_attempt(job: Job, attempt: Attempt) -> None:
    write_json(job.scratch / "job.json", attempt.model_dump())


def _exit_code(scratch: Path) -> int | None:
    path = scratch / EXIT_FILE
    return int(read_json(path)["code"]) if path.exists() else None


def _outcome(job: Job, code: int | None) -> Outcome:
    """Say what an exit code means; None is that of a stage whose end nobody saw."""
    if code == 0:
        return Outcome(kind=OutcomeKind.SUCCEEDED, exit_code=0)
    meant = (job.scratch / CANCELLED).exists()
    kind = OutcomeKind.CANCELLED if meant else OutcomeKind.FAILED
    return Outcome(kind=kind, exit_code=code, log_tail=tail(job.log))


def _report_leftovers(count: int) -> None:
    if count:
        print(f"submit: ended {count} process(es) that the stage left behind", flush=True)
