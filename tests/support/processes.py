"""Which processes work for a checkout, by the part that they play in a run."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from flows.executors.processes import MARK_VARIABLE

ROLES = {
    "afm": "flows.cli",
    "flow": "flows.pipeline",
    "dvc": "repro",
    "submit": "flows.submit",
    "stage": "stages.",
    "server": "prefect",
    "guard": "guard.py",
}
"""A word, or the beginning of one, in the command line of each part."""


def belonging(root: Path) -> list[psutil.Process]:
    """Return every live process that works in the checkout, or for a job or server of it."""
    return [process for process in psutil.process_iter() if _belongs(process, root.resolve())]


def _belongs(process: psutil.Process, root: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if Path(process.cwd()).is_relative_to(root):
            return True
        return process.environ().get(MARK_VARIABLE, "").startswith(str(root))
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def playing(root: Path, role: str) -> list[psutil.Process]:
    """Return the processes of one part; guards and what a stage starts are none of them."""
    return [process for process in belonging(root) if _plays(process, ROLES[role])]


def _plays(process: psutil.Process, word: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    is_guard = any(one.endswith("flows/guard.py") for one in words)
    if is_guard or word == "guard.py":
        return is_guard and word == "guard.py"
    return any(one.startswith(word) for one in words[1:])


def of_the_job(process: psutil.Process) -> bool:
    """Tell whether a process is a stage or was started by one."""
    try:
        return MARK_VARIABLE in process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def kill_all(processes: list[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal; who has ended by now is a moment too."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def wait_until(condition: Callable[[], object], timeout_s: float = 300.0) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: it did not become so in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def described(processes: list[psutil.Process]) -> list[str]:
    """Return command lines, for messages."""
    lines = []
    for process in processes:
        try:
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:150]}")
        except psutil.NoSuchProcess:
            continue
    return lines


def assert_only_the_job_is_left(root: Path, timeout_s: float = 60.0) -> None:
    """Wait for the runner's own processes to end."""

    def others() -> list[psutil.Process]:
        return [process for process in belonging(root) if not of_the_job(process)]

    _wait_for_none(others, timeout_s)


def assert_nothing_is_left(root: Path, timeout_s: float = 60.0) -> None:
    """Wait for every process of the checkout to end."""
    _wait_for_none(lambda: belonging(root), timeout_s)


def _wait_for_none(find: Callable[[], list[psutil.Process]], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while left := find():
        assert time.monotonic() < deadline, described(left)
        time.sleep(0.1)


def end_everything(root: Path) -> None:
    """Tidy up after a test that failed."""
    while left := belonging(root):
        kill_all(left)
        psutil.wait_procs(left, 5)
