"""Zygotes, seen from outside: processes with preloaded libraries, in their jail, that fork executions on request."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afm.errors import SandboxError
from afm.sandbox.base import Tier
from afm.sandbox.paths import libraries, readable

PRELOADS: dict[str, tuple[str, ...]] = {"plain": (), "scientific": ("numpy", "sympy")}
"""Images: a fork of a small one is cheaper, and a program that imports nothing needs no other."""
START_S = 120.0
"""An image loads in one or two seconds, and in many more on a machine that is busy [s]."""
ANSWER_S = 30.0
_INTERPRETER = getattr(sys, "_base_executable", sys.executable)
_JAIL = "afm.sandbox.jail.zygote"
_BOOT = """
import sys, types
for name, folder in {packages!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from {jail} import main
main({settings!r})
"""
"""Loads the jail's modules without running the `__init__` of the packages above them."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # printed sets are the same in every run
    "OMP_NUM_THREADS": "1",  # no thread may exist at a fork
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Zygote:
    """A running zygote. Its methods may be called from several threads."""

    def __init__(self, tier: Tier, image: str) -> None:
        """Start it and wait until its image is loaded and its jail closed.

        Raises:
            SandboxError: this machine does not allow the tier; the message says why.
        """
        self.is_usable = True
        """False once it did not answer."""
        self._lock = threading.Lock()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, tempfile.TemporaryFile() as log:
            self._process = _spawn(tier, image, control, log)
            control.close()
            try:
                answer, _ = self._receive(START_S)
            except SandboxError as error:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()
                self.close()
                raise SandboxError(f"{error}; {said[-400:]}" if said else str(error)) from error
        if "failed" in answer:
            self.close()
            raise SandboxError(answer["failed"])

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    def start(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Fork an execution; return its process ID as the zygote sees it, and a descriptor of the process.

        Raises:
            SandboxError: the zygote is gone or could not fork.
        """
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            except OSError as error:
                self.is_usable = False
                raise SandboxError(f"the zygote is gone: {error}") from error
            answer, received = self._receive(ANSWER_S)
        if "failed" in answer:
            raise SandboxError(f"the zygote could not fork: {answer['failed']}")
        return answer["pid"], received[0]

    def close(self) -> None:
        """End it, and with it all that it runs."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        self._control.settimeout(timeout_s)
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 65536, 1)
        except OSError as error:
            self.is_usable = False
            raise SandboxError(f"the zygote does not answer: {error}") from error
        if not message:
            self.is_usable = False
            raise SandboxError("the zygote ended")
        return json.loads(message), descriptors


def kill(process: int) -> None:
    """Kill what a descriptor of a process stands for, unless it has ended."""
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _spawn(tier: Tier, image: str, control: socket.socket, log: Any) -> subprocess.Popen[bytes]:
    here = Path(__file__).parent
    settings = {
        "tier": tier,
        "preload": [name for name in PRELOADS[image] if name in libraries()],
        "libraries": libraries(),
        "readable": readable(),
        "control": control.fileno(),
        "parent": os.getpid(),
    }
    packages = {"afm": str(here.parent), "afm.sandbox": str(here)}
    boot = _BOOT.format(packages=packages, jail=_JAIL, settings=settings)
    return subprocess.Popen(
        # -I less -E, which would also ignore the hash seed.
        [_INTERPRETER, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", boot],
        cwd="/",
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
        pass_fds=(control.fileno(),),
    )
