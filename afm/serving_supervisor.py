"""A process between a stage and its server, which ends the server's whole process group whatever happens.

Run by path with the standard library alone (`python -I -S serving_supervisor.py PARENT_PID FOLDER... -- COMMAND...`):
it starts the command in a session of its own, and ends it when it is told to (SIGTERM), or when its parent is gone,
SIGKILL included. In the latter case it also removes the folders, which its parent no longer can.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

POLL_S = 0.2
GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""
_NO_SIGNAL = 0
"""Only asks whether the group has members."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class _Told(Exception):
    """SIGTERM or SIGINT arrived."""


def main(arguments: list[str]) -> int:
    """Run a command until it ends, SIGTERM arrives or the parent is gone; returns the command's exit code."""
    split = arguments.index("--")
    parent, folders, command = int(arguments[0]), arguments[1:split], arguments[split + 1 :]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_supervisor)
    try:
        _watch(server, parent)
    except _Told:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        end_group(server)
        if os.getppid() != parent:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    return server.returncode or 0


def _watch(server: "subprocess.Popen[bytes]", parent: int) -> None:
    while server.poll() is None and os.getppid() == parent:
        time.sleep(POLL_S)


def end_group(server: "subprocess.Popen[bytes]") -> None:
    """End a server and all that it started: SIGTERM, then SIGKILL after a grace period; returns when none is left."""
    deadline = time.monotonic() + GRACE_S
    number: int = signal.SIGTERM
    while _signal_group(server, number):
        number = signal.SIGKILL if time.monotonic() > deadline else _NO_SIGNAL
        time.sleep(0.05)


def _signal_group(server: "subprocess.Popen[bytes]", number: int) -> bool:
    """Signal the group; False when it is empty."""
    server.poll()
    _reap()
    try:
        os.killpg(server.pid, number)
    except ProcessLookupError:
        return False
    return True


def _reap() -> None:
    """Collect orphans: as the sub-reaper this process is their parent, and a zombie counts as a group member."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _end_with_supervisor() -> None:
    """Get SIGTERM when the supervisor itself is killed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _on_signal(_number: int, _frame: object) -> None:
    raise _Told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
