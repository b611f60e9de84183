"""How many bytes removals free. Results, DVC's cache and the workspace hold links to the same files."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

UNITS = ("B", "kB", "MB", "GB", "TB")


class Freed:
    """Counts over several removals: the bytes of a file are free when the last link to it goes."""

    def __init__(self) -> None:
        """Nothing is removed yet."""
        self._links: dict[tuple[int, int], int] = {}
        self._gone: Counter[tuple[int, int]] = Counter()

    def add(self, path: Path) -> int:
        """Count a file or folder that is about to go, or would go.

        Returns:
            What that frees [bytes].
        """
        return sum(self._file(one) for one in _files(path))

    def _file(self, path: Path) -> int:
        state = path.lstat()
        file = (state.st_dev, state.st_ino)
        self._links.setdefault(file, state.st_nlink)  # as it was before the first link went
        self._gone[file] += 1
        return state.st_size if self._gone[file] == self._links[file] else 0


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for parent, _, names in os.walk(path):
        yield from (Path(parent) / name for name in names)


def shown(num_bytes: float) -> str:
    """Write a size for people, in powers of ten."""
    for unit in UNITS[:-1]:
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} {UNITS[-1]}"
