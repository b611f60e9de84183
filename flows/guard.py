"""A process between a runner and its child, which ends the child's whole group whatever happens to the runner.

Run by path with the standard library alone (`python -I -S guard.py PARENT_PID COMMAND...`). It starts the command in a
session of its own and exits with its code. What it gets it passes on: SIGINT as the intent to end, SIGTERM as a bare
end. When its parent is gone, SIGKILL included, it does as if SIGTERM had come.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

POLL_S = 0.1
END_GRACE_S = 5.0
"""From SIGTERM to SIGKILL [s]."""
INTENT_GRACE_S = 60.0
"""How long an interrupted group gets to end its job and release its locks [s]."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` under a guard of the calling process."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), *command]


class Guard:
    """One command in a session of its own."""

    def __init__(self, parent: int, command: Sequence[str]) -> None:
        """Start the command; signals that arrive from now on are passed on."""
        self._parent = parent
        self._interrupts = self._passed = 0
        self._told = False
        self._awake, alarm = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(alarm, False)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._child = subprocess.Popen(command, start_new_session=True, preexec_fn=_prepare_child)

    def wait(self) -> int:
        """Wait until the command and its group have ended.

        Returns:
            The command's exit code; 128 + n where signal n ended it.
        """
        while self._child.poll() is None and not self._must_end():
            self._reap()
            self._pass_interrupts_on()
            self._sleep(POLL_S)
        if self._interrupts:
            self._wait_for_group(INTENT_GRACE_S, until=self._must_end)
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal_group(number)
            self._wait_for_group(END_GRACE_S)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _must_end(self) -> bool:
        return self._told or os.getppid() != self._parent

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
        elif number != signal.SIGCHLD:
            self._told = True

    def _sleep(self, seconds: float) -> None:
        """Sleep until a signal arrives, the end of a child included; one that came since the last look counts."""
        if select.select([self._awake], [], [], seconds)[0]:
            os.read(self._awake, 4096)

    def _pass_interrupts_on(self) -> None:
        """Signals that arrive together count once: a second one means that there is no more time."""
        if self._interrupts > self._passed:
            self._passed = self._interrupts
            self._signal_group(signal.SIGINT)

    def _wait_for_group(self, grace_s: float, until: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + grace_s
        while self._signal_group(0) and time.monotonic() < deadline and not until():
            self._pass_interrupts_on()
            self._sleep(POLL_S / 2)

    def _signal_group(self, number: int) -> bool:
        """Signal the group; False when it is empty."""
        self._reap()
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _reap(self) -> None:
        """Collect orphans: as the sub-reaper this process is their parent, and others wait for them to be gone."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self._child.pid:
                    self._child.poll()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)


def _prepare_child() -> None:
    """Get SIGTERM when the guard itself is killed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Ask Linux; other systems have no such call, and there a killed guard leaves its command running."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(Guard(int(sys.argv[1]), sys.argv[2:]).wait())
