"""Running one cell: a dvc process in its own session, followed live."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from flows.environment import stage_environment

INTERRUPT_GRACE_S = 60.0
"""How long an interrupted dvc gets to end its job and release its locks [s]."""


class CellFailed(RuntimeError):
    """A cell's dvc process ended with an error."""


def dvc_command(cell: str, *, force: bool) -> list[str]:
    """Return the command that brings one cell up to date.

    Without `--wait-for-lock` a lock that is busy at commit time loses a finished run.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", cell]
    return [*command, "--force"] if force else command


def run_cell(root: Path, cell: str, *, force: bool, emit: Callable[[str], None]) -> None:
    """Run one cell to its end, passing each line of its output on.

    Interrupting this call (Ctrl-C, a cancelled flow run) ends the cell's job. Killing this process does not: the job
    goes on and the next run adopts it.

    Raises:
        CellFailed: dvc ended with an error; the message holds the last lines of its output.
    """
    process = subprocess.Popen(
        dvc_command(cell, force=force),
        cwd=root,
        env=stage_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    tail: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-19:], line.rstrip()]
            emit(line.rstrip())
        code = process.wait()
    except BaseException:
        _interrupt(process)
        raise
    if code != 0:
        raise CellFailed(f"{cell} failed (dvc exit code {code}):\n" + "\n".join(tail))


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End dvc and its job as Ctrl-C in a terminal would."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(INTERRUPT_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
