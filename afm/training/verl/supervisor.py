"""Run a command and end everything that it started: when it ends, when told to, or when the caller is gone.

`python -m afm.training.verl.supervisor FOLDER COMMAND...` with a pipe as standard input. The caller keeps the pipe
open; it closes with the caller, however that dies. The supervisor adopts orphans of its tree, so that a process which
left its group or its session (Ray's do) is ended too. FOLDER holds what the command leaves on disk, and is removed.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 5.0
_POLL_S = 0.2


class _Told(Exception):
    """A signal asked the supervisor to end."""


def main(folder: str, command: list[str]) -> int:
    """Run the command to its end or the caller's; returns its exit code, 143 when it was ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _on_signal)
    code = 128 + signal.SIGTERM
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
        )
        code = _watch(child, code)
    except _Told:
        pass
    finally:
        _end_tree()
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _watch(child: subprocess.Popen[bytes], ended: int) -> int:
    while (code := child.poll()) is None:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            return ended
    return code


def _end_tree() -> None:
    """End all descendants: first kindly, then surely, until none is left."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _, alive = psutil.wait_procs(_signal_all(signal.SIGTERM), timeout=_GRACE_S)
    while alive or psutil.Process().children(recursive=True):
        _, alive = psutil.wait_procs(_signal_all(signal.SIGKILL), timeout=_GRACE_S)


def _signal_all(number: int) -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    for process in found:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
    return found


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _on_signal(_signum: int, _frame: FrameType | None) -> None:
    raise _Told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
