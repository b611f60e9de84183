"""Folders of executions that have no filesystem of their own, and the watch over them."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from afm.params.tools import SandboxParams
from afm.sandbox.jail.namespaces import NOBODY

PREFIX = "afm-sandbox-"


class ScratchRoot:
    """Holds the folders of one pool; locked while the pool lives, so that others know what is left over."""

    def __init__(self) -> None:
        """Sweep what dead pools left, and make a folder that others may enter but not list."""
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.path.chmod(0o711)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Give a fresh folder to the user that programs run as."""
        folder = Path(tempfile.mkdtemp(dir=self.path))
        try:
            if os.geteuid() == 0:
                os.chown(folder, NOBODY, NOBODY)
            yield folder
        finally:
            _remove(folder)

    def close(self) -> None:
        """Remove everything."""
        _remove(self.path)
        os.close(self._lock)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Looks every now and then whether an execution without namespaces keeps its limits."""

    folder: Path
    pid: int
    limits: SandboxParams

    def exceeded(self) -> str | None:
        """Say which limit is exceeded; None while all are kept."""
        if _num_threads(self.pid) > self.limits.max_processes:
            return f"more than {self.limits.max_processes} threads"
        used = _usage(self.folder, self.limits.max_files + 2)
        if used is None:
            return f"more than {self.limits.max_files} files, or a folder that hides its files"
        if used > self.limits.scratch_mib * 2**20:
            return f"more than {self.limits.scratch_mib} MiB in files"
        return None


def _num_threads(pid: int) -> int:
    with suppress(OSError, StopIteration, ValueError):
        with open(f"/proc/{pid}/status") as status:
            line = next(line for line in status if line.startswith("Threads:"))
        return int(line.split()[1])
    return 0


def _usage(folder: Path, max_entries: int) -> int | None:
    """Return the bytes on disk below a folder; None where there are too many entries or one cannot be listed."""
    used, entries, frontier = 0, 0, [str(folder)]
    while frontier:
        try:
            with os.scandir(frontier.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if entries > max_entries:
                        return None
                    with suppress(FileNotFoundError):  # removed meanwhile
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            frontier.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return used


def _sweep(temporary: Path) -> None:
    """Remove folders of pools whose process was killed: nobody holds their lock."""
    for left in temporary.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(left)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder whatever a program made of it: closed folders, or thousands inside each other."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
