"""md5 of files and folders exactly as DVC 3 computes it, remembered by inode so that weights are read once."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from afm.errors import UserError
from flows.memory import Memory

REMEMBER_BYTES = 1 << 20
"""Files from this size on are remembered; md5 runs at 0.6 GB/s, a smaller file costs less than its entry."""
IGNORED = frozenset({"__pycache__", ".git", ".dvc"})
"""Folders that DVC does not hash: its own and those in .dvcignore (a contract test compares)."""


class Hasher:
    """Computes hashes; keeps those of big files in one JSON file across processes."""

    def __init__(self, memory: Path) -> None:
        """Use `memory` as the file of remembered hashes."""
        self._memory = Memory(memory)

    def md5(self, path: Path) -> str:
        """Return the md5 of a file, or of a folder's listing with `.dir` at the end.

        Raises:
            UserError: there is no such file or folder.
        """
        if path.is_dir():
            return listing_md5(self.files(path))
        if not path.exists():
            raise UserError(f"no such file or folder: {path}")
        return self._file(path)

    def files(self, folder: Path) -> dict[str, str]:
        """Return the md5 of each file below `folder` by relative path, or of `folder` itself if it is a file."""
        if not folder.is_dir():
            return {"": self.md5(folder)}
        return {
            path.relative_to(folder).as_posix(): self._file(path) for path in sorted(walk(folder))
        }

    def save(self) -> None:
        """Keep what was computed."""
        self._memory.save()

    def _file(self, path: Path) -> str:
        state = path.stat()
        if state.st_size < REMEMBER_BYTES:
            return file_md5(path)
        # By inode, not by path: another checkout's link to the same content is not read again. Not by device: that of a
        # network filesystem differs from pod to pod.
        key = str(state.st_ino)
        mark = [state.st_size, state.st_mtime_ns]
        known: list[str | int] | None = self._memory.get(key)
        if known is None or known[1:] != mark:
            known = [file_md5(path), *mark]
            self._memory[key] = known
        return str(known[0])


def file_md5(path: Path) -> str:
    """Return the md5 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def listing_md5(files: dict[str, str]) -> str:
    """Return the hash of a folder from those of its files (`dvc_data.hashfile.tree.Tree.digest`)."""
    rows = [{"md5": md5, "relpath": relpath} for relpath, md5 in sorted(files.items())]
    return hashlib.md5(json.dumps(rows, sort_keys=True).encode()).hexdigest() + ".dir"


def walk(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder that DVC would hash."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in IGNORED]
        yield from (Path(parent) / name for name in names)
