"""Running one cell: a dvc process in its own session, followed live."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flows.environment import stage_environment
from flows.executors import OutcomeKind
from flows.guard import guarded
from stages._stage import EXIT_USER_ERROR

CANCEL_POLL_S = 5.0
"""How often it is asked whether the run has been cancelled [s]."""
STOP_POLL_S = 0.2
"""How often a thread looks whether the run is to stop [s]."""
TAIL_LINES = 20
EXIT_SIGNAL = 128
"""Above it, an exit code tells of the signal that ended a process."""
OUTCOME = re.compile(rf"submit: \S+ [0-9a-f]+: ({'|'.join(OutcomeKind)}): ")
"""How submit tells of a job that gave no result."""
UNREACHABLE = "unreachable"
"""Outcome of a job whose cluster did not answer for too long; it goes on there."""
NO_ANSWER = re.compile(r"submit: [A-Z]+ \S+: no answer: ")


class CellFailed(RuntimeError):
    """A cell's dvc process ended with an error."""

    def __init__(self, message: str, tail: Sequence[str] = (), outcome: str | None = None) -> None:
        """Keep the end of the output, and the job's outcome where submit named one."""
        super().__init__(message)
        self.tail = tuple(tail)
        self.outcome = outcome


class CellCancelled(RuntimeError):
    """The flow run was cancelled or interrupted, and with it the cell's job."""


class CellLeft(RuntimeError):
    """The flow run ends without the intent to end its jobs: this cell's goes on."""


class Stop:
    """The wish of a run to end, told to the threads of its cells: only the main thread gets signals."""

    def __init__(self) -> None:
        """Wish for nothing yet."""
        self._told = threading.Event()
        self._presses = 0

    def ask(self, *, intent: bool) -> None:
        """End all cells; with intent their jobs too. A second time with intent means that there is no more time."""
        self._presses += intent
        self._told.set()

    @property
    def presses(self) -> int:
        """How often it was asked with intent."""
        return self._presses

    def check(self) -> None:
        """Do nothing while the run goes on.

        Raises:
            CellCancelled: it is to end with its jobs.
            CellLeft: it is to end without.
        """
        if self._told.is_set():
            if self._presses:
                raise CellCancelled("the run was ended on purpose, and its job with it")
            raise CellLeft("the run was ended; its job goes on, and the next run adopts it")

    def wait(self, timeout_s: float) -> None:
        """Wait, unless the run is to end.

        Raises:
            CellCancelled, CellLeft: as `check`.
        """
        self._told.wait(timeout_s)
        self.check()


def dvc_command(cell: str, *, force: bool) -> list[str]:
    """Return the command that brings one cell up to date.

    Without `--wait-for-lock` a lock that is busy at commit time loses a finished run.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", cell]
    return [*command, "--force"] if force else command


def run_cell(
    root: Path,
    cell: str,
    *,
    force: bool,
    emit: Callable[[str], None],
    is_cancelled: Callable[[], bool] = lambda: False,
    stop: Stop | None = None,
) -> None:
    """Run one cell to its end, passing each line of its output on.

    Interrupting this call (Ctrl-C) or cancelling the flow run ends the cell's job. Ending this process in any other way
    does not: dvc ends, the job goes on, and the next run adopts it.

    Raises:
        CellFailed: dvc ended with an error; the message is what the stage said about it.
        CellCancelled: `is_cancelled` became true, or `stop` was asked with intent.
        CellLeft: `stop` was asked without.
    """
    stop = stop or Stop()
    process = _start(root, guarded(dvc_command(cell, force=force)))
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        for line in _lines(process, is_cancelled, stop):
            tail.append(line)
            emit(line)
        code = process.wait()
    except BaseException as error:
        meant = isinstance(error, KeyboardInterrupt | CellCancelled) or is_cancelled()
        _end(process, signal.SIGINT if meant else signal.SIGTERM, stop)
        raise
    if code != 0:
        message = f"{cell} failed: {_reason(list(tail), cell, code)}"
        raise CellFailed(message, tail, _outcome(tail))


def _start(root: Path, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=root,
        env=stage_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _lines(
    process: "subprocess.Popen[str]", is_cancelled: Callable[[], bool], stop: Stop
) -> Iterator[str]:
    """Yield lines as they come; a thread reads on even when nobody asks, so that the writer never blocks."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    asked = time.monotonic()
    while True:
        stop.check()
        if time.monotonic() - asked >= CANCEL_POLL_S:
            if is_cancelled():
                raise CellCancelled("the flow run was cancelled; its job has been ended")
            asked = time.monotonic()
        try:
            line = lines.get(timeout=STOP_POLL_S)
        except queue.Empty:
            continue
        if line is None:
            return
        yield line


def _read(process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip())
    lines.put(None)


def _end(process: "subprocess.Popen[str]", number: signal.Signals, stop: Stop) -> None:
    """End dvc, with its job (SIGINT, as Ctrl-C in a terminal would) or without; the guard sees to the end of it."""
    process.send_signal(number)
    presses = stop.presses
    while True:
        try:
            process.wait(STOP_POLL_S)
            return
        except subprocess.TimeoutExpired:
            if stop.presses == presses:
                continue
        except KeyboardInterrupt:
            pass
        presses = stop.presses
        process.send_signal(signal.SIGINT)


def _outcome(tail: Sequence[str]) -> str | None:
    """Return the outcome of the job as submit named it last, for instance `evicted`."""
    if any(NO_ANSWER.match(line) for line in tail):
        return UNREACHABLE
    found = [match for line in tail if (match := OUTCOME.match(line))]
    return found[-1][1] if found else None


def _reason(tail: list[str], cell: str, code: int) -> str:
    """Pick what says most about a failure from the end of a cell's output.

    That is the stage's own message where the user can mend it, else submit's, else what dvc said.
    """
    stage = cell.partition("@")[0]
    submits = [line for line in tail if line.startswith(("submit: ", "bin/submit: "))]
    if submits and f"exit code {EXIT_USER_ERROR};" in submits[-1]:
        submits += [line for line in tail if line.startswith(f"{stage}: ")][-1:]
    errors = [line for line in tail if line.startswith("ERROR: ")]
    killed = re.search(r"exited with -\d+$", errors[-1]) if errors else code > EXIT_SIGNAL
    if killed:
        return "it was killed; the job goes on, and the same command adopts it"
    last = [*errors, *submits] or tail
    return last[-1] if last else f"dvc exit code {code}"
