"""Finding and ending the processes of a job on this machine, however they were started."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

import psutil

POLL_S = 0.05
MARK_VARIABLE = "AFM_JOB"
"""In the environment of every process of a job: it survives new sessions and the death of parents, a group does not."""
STAGE_GRACE_S = 20.0
"""How long a stage gets to end its helpers and leave after SIGTERM [s]."""
HELPER_GRACE_S = 15.0
"""How long the rest gets [s]; longer than the supervisor of a model server takes to end that."""


def members(mark: str) -> list[psutil.Process]:
    """Return the live processes whose mark begins with `mark`, and those in a session with one of them.

    A process may have hidden its mark; a stage and its servers have sessions of their own.
    """
    everyone = list(psutil.process_iter())
    marked = [process for process in everyone if _mark(process).startswith(mark)]
    sessions = {_session(process) for process in marked} - {os.getsid(0), 0}
    return [one for one in everyone if one in marked or _session(one) in sessions]


def is_alive(pid: int, create_time: float) -> bool:
    """Tell whether a process still runs; its start time tells it from a later one with the same number."""
    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - create_time) < 1.0
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


def end_job(pid: int | None, mark: str) -> None:
    """End a job: its stage first, which ends its helpers in order, then whatever is left."""
    everyone = members(mark)
    _end([process for process in everyone if process.pid == pid], STAGE_GRACE_S)
    end_members(mark)


def end_members(mark: str) -> int:
    """End every process of a job and see them gone.

    Returns:
        How many there were.
    """
    count = 0
    while left := members(mark):
        count += len(left)
        _end(left, HELPER_GRACE_S)
    return count


def _end(processes: Sequence[psutil.Process], grace_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    try:
        alive = _wait(processes, grace_s)
    except KeyboardInterrupt:
        alive = list(processes)  # a second Ctrl-C: no more grace
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(alive, HELPER_GRACE_S)


def _wait(processes: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """Wait until processes have ended; returns those that have not.

    One that has ended may stay a zombie: its parent is not always us, and not always one that collects it.
    """
    deadline = time.monotonic() + grace_s
    while alive := [one for one in processes if _runs(one)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return alive


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def ancestors() -> Iterator[psutil.Process]:
    """Yield the parents of this process, nearest first."""
    yield from psutil.Process().parents()


def _session(process: psutil.Process) -> int:
    """Return the session of a live process; 0 for one that is gone."""
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0


def _mark(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get(MARK_VARIABLE, "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return ""
