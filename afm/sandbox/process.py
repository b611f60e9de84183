"""The sandbox as one process per execution, with few rights, hard limits and capped output."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, OutcomeKind, Sandbox

_CHILD = Path(__file__).with_name("_child.py")
_INTERPRETER = getattr(sys, "_base_executable", sys.executable)
"""The interpreter itself: a virtual environment's packages are not the program's business."""
_CHUNK = 65536
_PROBE = """
import os, socket
def fork():
    if os.fork() == 0:
        os._exit(0)
for name, attempt in {
    "opened a socket": socket.socket,
    "started a process": fork,
    "sent a signal": lambda: os.kill(os.getppid(), 0),
}.items():
    try:
        attempt()
    except OSError:
        continue
    print(name)
"""
_PROBE_LIMITS = SandboxParams(
    wall_s=20.0,
    cpu_s=5,
    memory_mib=512,
    max_output_bytes=4096,
    max_file_bytes=4096,
    max_processes=8,
)


@dataclass(kw_only=True, slots=True)
class _Capture:
    """What came out of a process, and what ended it."""

    max_bytes: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended_by: OutcomeKind | None = None

    def add(self, buffer: bytearray, chunk: bytes) -> None:
        room = self.max_bytes - len(self.stdout) - len(self.stderr)
        buffer += chunk[:room]
        if len(chunk) > room:
            self.ended_by = "output_limit"


class ProcessSandbox:
    """Starts a fresh interpreter for each program, in a fresh folder that is removed afterwards.

    The program cannot open sockets, start processes, signal others or raise its limits. Where the
    kernel has Landlock it reads nothing but the interpreter and system libraries, and writes nothing
    but its folder.
    """

    def run(self, program: str, stdin: str | None, limits: SandboxParams) -> Outcome:
        """See `Sandbox`."""
        with (
            _folder() as folder,
            _stdin(stdin) as given,
            _pipe() as (armed, armed_child),
        ):
            (folder / "main.py").write_text(program, encoding="utf-8", errors="replace")
            deadline = time.monotonic() + limits.wall_s
            process = _start(folder, given, armed_child, limits)
            armed_child.close()
            try:
                capture = _capture(process, limits.max_output_bytes, deadline)
            finally:
                _kill_group(process)
            is_armed = armed.read(1) == b"1"
            return _outcome(process.returncode, capture, is_armed=is_armed, folder=folder)


def require_isolation(sandbox: Sandbox) -> None:
    """Try to break out, for real.

    Raises:
        SandboxError: an attempt succeeded, or nothing could be run at all.
    """
    outcome = sandbox.run(_PROBE, None, _PROBE_LIMITS)
    if outcome.kind != "ok" or outcome.stdout:
        raise SandboxError(
            "the sandbox does not isolate on this machine; code is not run: "
            f"{outcome.kind}: {(outcome.stdout + outcome.stderr).strip()[-400:]}"
        )


def _start(
    folder: Path, stdin: IO[bytes] | int, armed: IO[bytes], limits: SandboxParams
) -> subprocess.Popen[bytes]:
    numbers = (
        limits.memory_mib * 2**20,
        limits.max_file_bytes,
        limits.max_processes,
        limits.cpu_s,
        armed.fileno(),
    )
    arguments = [*map(str, numbers), "main.py"]
    return subprocess.Popen(
        [_INTERPRETER, "-I", "-S", "-B", str(_CHILD), *arguments],
        cwd=folder,
        env={},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(armed.fileno(),),
    )


def _capture(process: subprocess.Popen[bytes], max_bytes: int, deadline: float) -> _Capture:
    capture = _Capture(max_bytes=max_bytes)
    with selectors.DefaultSelector() as selector:
        for stream, buffer in (
            (process.stdout, capture.stdout),
            (process.stderr, capture.stderr),
        ):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map() and capture.ended_by is None:
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                capture.ended_by = "timeout"
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                capture.add(key.data, chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
    if capture.ended_by is None:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            capture.ended_by = "timeout"
    return capture


def _outcome(exit_code: int, capture: _Capture, *, is_armed: bool, folder: Path) -> Outcome:
    # The folder's random name must not reach the observation: same program, same text.
    stdout, stderr = (
        stream.decode(errors="replace").replace(f"{folder}/", "")
        for stream in (capture.stdout, capture.stderr)
    )
    kind = _kind(exit_code, capture.ended_by, stderr) if is_armed else "sandbox_failure"
    return Outcome(
        kind=kind,
        stdout=stdout,
        stderr=stderr,
        exit_code=exit_code if capture.ended_by is None else None,
    )


def _kind(exit_code: int, ended_by: OutcomeKind | None, stderr: str) -> OutcomeKind:
    """Name the end; `oom` is an uncaught MemoryError or a SIGKILL that was not sent from here."""
    if ended_by is not None:
        return ended_by
    if exit_code == 0:
        return "ok"
    if exit_code == -signal.SIGXCPU:
        return "timeout"
    is_memory_error = stderr.rstrip().rpartition("\n")[2].startswith("MemoryError")
    return "oom" if is_memory_error or exit_code == -signal.SIGKILL else "error"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


@contextmanager
def _folder() -> Iterator[Path]:
    """A fresh folder that only this user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="afm-sandbox-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _stdin(text: str | None) -> Iterator[IO[bytes] | int]:
    if text is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as stream:
        stream.write(text.encode(errors="replace"))
        stream.seek(0)
        yield stream


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb") as writer:
        yield reader, writer
