"""One execution, watched from outside: its output, its time, and how the zygote says that it ended."""

import fcntl
import json
import os
import re
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, OutcomeKind, failure
from afm.sandbox.image import Zygote, kill
from afm.sandbox.jail.namespaces import SCRATCH
from afm.sandbox.scratch import Watch

CHUNK = 65536
WATCH_S = 0.02
SET_UP_S = 30.0
"""Longest wait until a process is armed; the program's own time begins then [s]."""
KILL_S = 10.0
"""Longest wait for the end of a killed process [s]."""
_OUT_OF_MEMORY = re.compile(r"(?:\w+\.)*_?\w*MemoryError\b")


@dataclass(kw_only=True, slots=True)
class _Capture:
    """What came out of a process, and what ended it."""

    max_bytes: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended_by: OutcomeKind | None = None
    """Set where the end came from outside."""
    note: str = ""
    end: bytes = b""
    """What the zygote said about the end."""
    is_armed: bool = False

    def add(self, buffer: bytearray, chunk: bytes) -> None:
        room = self.max_bytes - len(self.stdout) - len(self.stderr)
        buffer += chunk[:room]
        if len(chunk) > room:
            self.ended_by = "output_limit"


@dataclass(kw_only=True, slots=True)
class _Run:
    """An execution under way."""

    process: int
    """Descriptor."""
    limits: SandboxParams
    watch: Watch | None
    deadline: float
    """Of what it does now: being set up, running, or dying (`time.monotonic`)."""
    capture: _Capture
    is_killed: bool = False
    is_over: bool = False

    def take_stdout(self, chunk: bytes) -> None:
        self.capture.add(self.capture.stdout, chunk)

    def take_stderr(self, chunk: bytes) -> None:
        self.capture.add(self.capture.stderr, chunk)

    def take_armed(self, chunk: bytes) -> None:
        if chunk and not self.is_killed:
            self.capture.is_armed = True
            self.deadline = time.monotonic() + self.limits.wall_s

    def take_end(self, chunk: bytes) -> None:
        self.capture.end, self.is_over = chunk, True

    def pause(self) -> float:
        """Return how long to wait for the next event [s]."""
        left = max(self.deadline - time.monotonic(), 0)
        return left if self.watch is None or self.is_killed else min(left, WATCH_S)

    def judge(self) -> None:
        """Kill it where it exceeds a limit; give up on one that does not even die."""
        is_late = time.monotonic() >= self.deadline
        if self.is_killed:
            self.is_over |= is_late
            return
        if self.capture.ended_by is None and is_late:
            self.capture.ended_by = "timeout"
        if self.capture.ended_by is None and self.watch is not None:
            exceeded = self.watch.exceeded()
            if exceeded:
                self.capture.ended_by = "output_limit"
                self.capture.note = f"ended by the sandbox: {exceeded}\n"
        if self.capture.ended_by is not None and not self.is_over:
            kill(self.process)
            self.is_killed, self.deadline = True, time.monotonic() + KILL_S


def execute(
    zygote: Zygote, program: str, stdin: str | None, limits: SandboxParams, folder: Path | None
) -> Outcome:
    """Run a program in a fork of the zygote.

    Args:
        zygote: Forks it.
        program: Its source.
        stdin: Its standard input; None is an empty one.
        limits: Of this execution.
        folder: Its working folder; None where the tier gives it a filesystem of its own.

    Raises:
        SandboxError: the zygote is gone; nothing was executed.
    """
    with ExitStack() as stack:
        stdout, stderr, armed, ended = (stack.enter_context(_pipe()) for _ in range(4))
        given = [stack.enter_context(_file(program)), stack.enter_context(_file(stdin or ""))]
        ends = [pipe[1] for pipe in (stdout, stderr, armed, ended)]
        pid, process = zygote.start(
            _request(limits, folder), [stream.fileno() for stream in (*given, *ends)]
        )
        for end in ends:
            end.close()
        watch = None if folder is None else Watch(folder=folder, pid=pid, limits=limits)
        run = _Run(
            process=process,
            limits=limits,
            watch=watch,
            deadline=time.monotonic() + SET_UP_S,
            capture=_Capture(max_bytes=limits.max_output_bytes),
        )
        try:
            _follow(run, stdout[0], stderr[0], armed[0], ended[0])
        finally:
            kill(process)
            os.close(process)
        return _outcome(run.capture, limits, folder)


def _request(limits: SandboxParams, folder: Path | None) -> dict[str, object]:
    return {
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_mib * 2**20,
        "max_file_bytes": limits.max_file_bytes,
        "max_processes": limits.max_processes,
        "max_files": limits.max_files,
        "scratch_bytes": limits.scratch_mib * 2**20,
        "scratch": None if folder is None else str(folder),
    }


def _follow(
    run: _Run, stdout: IO[bytes], stderr: IO[bytes], armed: IO[bytes], ended: IO[bytes]
) -> None:
    """Read until the zygote reports the end; kill what goes beyond a limit."""
    with selectors.PollSelector() as selector:
        for stream, sink in (
            (stdout, run.take_stdout),
            (stderr, run.take_stderr),
            (armed, run.take_armed),
            (ended, run.take_end),
        ):
            selector.register(stream, selectors.EVENT_READ, sink)
        while not run.is_over:
            for key, _ in selector.select(run.pause()):
                chunk = os.read(key.fd, CHUNK)
                key.data(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            run.judge()
    # `armed` too: between two looks at the pipes a short program may have been armed and have ended.
    for stream, sink in (
        (stdout, run.take_stdout),
        (stderr, run.take_stderr),
        (armed, run.take_armed),
    ):
        _drain(stream, sink)


def _drain(stream: IO[bytes], sink: Callable[[bytes], None]) -> None:
    """Take what still lies in a pipe after the end."""
    os.set_blocking(stream.fileno(), False)
    while True:
        try:
            chunk = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            return
        sink(chunk)


def _outcome(capture: _Capture, limits: SandboxParams, folder: Path | None) -> Outcome:
    stdout, stderr = (
        stream.decode(errors="replace") for stream in (capture.stdout, capture.stderr)
    )
    if not capture.is_armed:
        return failure(stderr or "the execution ended before it was armed")
    if not capture.end:
        return failure("the zygote did not report how the execution ended")
    if folder is not None:  # its random name must not reach an observation: same program, same text
        stdout, stderr = (text.replace(str(folder), SCRATCH) for text in (stdout, stderr))
    end = json.loads(capture.end)
    exit_code = os.waitstatus_to_exitcode(end["status"])
    return Outcome(
        kind=capture.ended_by or _kind(exit_code, end["cpu_s"], stderr, limits),
        stdout=stdout,
        stderr=stderr + capture.note,
        exit_code=exit_code if capture.ended_by is None else None,
    )


def _kind(exit_code: int, cpu_s: float, stderr: str, limits: SandboxParams) -> OutcomeKind:
    """Name an end that did not come from here; `oom` is an uncaught MemoryError or a kill by the kernel."""
    if exit_code == 0:
        return "ok"
    if exit_code == -signal.SIGKILL:
        return "timeout" if cpu_s >= limits.cpu_s - 0.1 else "oom"
    is_memory_error = _OUT_OF_MEMORY.match(stderr.rstrip().rpartition("\n")[2])
    return "oom" if is_memory_error else "error"


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb", buffering=0) as reader,
        os.fdopen(writing, "wb", buffering=0) as writer,
    ):
        yield reader, writer


@contextmanager
def _file(text: str) -> Iterator[IO[bytes]]:
    """A file in memory that can be read and nothing else."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "r+b", buffering=0) as stream:
        view = memoryview(text.encode(errors="replace"))
        while view:
            view = view[stream.write(view) :]
        stream.seek(0)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield stream
