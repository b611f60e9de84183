"""Passing a growing log file on to standard output."""

import os
import sys
from pathlib import Path

ADOPTED_BYTES = 4096
"""How much of a log that already exists is shown when a job is adopted."""
TAIL_LINES = 20


class Echo:
    """Copies what is appended to a file to standard output."""

    def __init__(self, path: Path, *, from_start: bool) -> None:
        """Follow `path`, which may not exist yet."""
        self._path = path
        self._from_start = from_start
        self._position: int | None = None
        self._inode = 0
        self._broken = False

    def step(self) -> None:
        """Copy what has been appended since the last call."""
        try:
            with self._path.open("rb") as stream:
                state = os.fstat(stream.fileno())
                stream.seek(self._start(state))
                data = stream.read()
        except FileNotFoundError:
            return
        assert self._position is not None
        self._position += len(data)
        self._write(data)

    def _start(self, state: os.stat_result) -> int:
        if self._position is None or state.st_ino != self._inode:
            fresh = self._from_start or self._position is not None
            self._position = 0 if fresh else max(0, state.st_size - ADOPTED_BYTES)
            self._inode = state.st_ino
        return self._position

    def _write(self, data: bytes) -> None:
        if not data or self._broken:
            return
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever read our output is gone; the job matters more than its echo.
            self._broken = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tail(path: Path) -> str:
    """Return the last lines of a log, or nothing where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])
