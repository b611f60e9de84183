"""Where two files or folders begin to differ, and how many rows of two JSON Lines files do."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from flows.hashing import file_md5, walk

SHOWN = 3
"""Most names listed before the rest is only counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How one output differs between two runs."""

    where: str
    """The first place, for people; `nowhere` if none."""
    rows: int | None = None
    """Rows of the longer file; None for what is not rows."""
    differing: int | None = None
    """Rows with the same key and another content."""
    same_form: bool | None = None
    """Whether both have the same row keys in the same order, or the same file names; None for any other file."""

    @property
    def share(self) -> float | None:
        """Share of the rows that differ."""
        return self.differing / self.rows if self.rows and self.differing is not None else None


def compare_rows(one: Path, other: Path, keys: Sequence[str]) -> Difference:
    """Compare two JSON Lines files whose rows should have the same keys in the same order.

    Args:
        one: rows of the first run.
        other: rows of the second.
        keys: fields that make a row's key.
    """
    pairs = list(zip_longest(_lines(one), _lines(other)))
    unequal = [at for at, (line, twin) in enumerate(pairs) if line != twin]
    strange = [at for at in unequal if _key(pairs[at][0], keys) != _key(pairs[at][1], keys)]
    return Difference(
        where=_first_row(pairs, (strange or unequal)[:1], keys),
        rows=len(pairs),
        differing=len(unequal) - len(strange),
        same_form=not strange,
    )


def _first_row(
    pairs: Sequence[tuple[str | None, str | None]], at: Sequence[int], keys: Sequence[str]
) -> str:
    if not at:
        return "nowhere"
    here, there = (_key(line, keys) for line in pairs[at[0]])
    return f"row {at[0] + 1}: {here}" + (f" is {there} in the other" if here != there else "")


def compare_files(one: Path, other: Path) -> Difference:
    """Name the first differing line of two files, or the differing files of two folders."""
    if not (one.is_dir() and other.is_dir()):
        return Difference(where=_first_place(one, other))
    here, there = _files(one), _files(other)
    alone = {name: "one" for name in here if name not in there}
    alone |= {name: "the other" for name in there if name not in here}
    names = [f"{name} (only in {side})" for name, side in sorted(alone.items())]
    names += [
        f"{name} ({_first_place(here[name], there[name])})"
        for name in sorted({*here} & {*there})
        if file_md5(here[name]) != file_md5(there[name])
    ]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Difference(where=f"{', '.join(names[:SHOWN])}{more}", same_form=not alone)


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in walk(folder)}


def _first_place(one: Path, other: Path) -> str:
    """Name the first differing line of text; no place in anything else says much."""
    if one.is_dir() or other.is_dir():
        return "one is a folder"
    with one.open("rb") as first, other.open("rb") as second:
        for number, (line, twin) in enumerate(zip_longest(first, second), start=1):
            if line != twin:
                return "bytes" if b"\0" in (line or b"") + (twin or b"") else f"line {number}"
    raise AssertionError(f"{one} and {other} are the same")


def _lines(path: Path) -> list[str]:
    """Split at newlines alone: a row may hold other separators that `splitlines` knows."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def _key(line: str | None, keys: Sequence[str]) -> str:
    if line is None:
        return "no row"
    row: dict[str, Any] = json.loads(line)
    return ", ".join(f"{key} {row.get(key)}" for key in keys)
