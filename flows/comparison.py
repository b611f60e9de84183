"""What two finished runs share: the bytes where a stage repeats itself, the rows where a model server samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.contents import Difference, compare_files, compare_rows
from flows.hashing import Hasher
from flows.lock_file import read_lock

SAMPLED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "screen": {
        "samples.jsonl": ("query_id", "sample_index", "seed"),
        "pass_rates.jsonl": ("query_id", "num_samples"),
    },
    "screen_sft": {
        "samples.jsonl": ("query_id", "sample_index", "seed"),
        "pass_rates.jsonl": ("query_id", "num_samples"),
    },
    "screen_endpoint": {
        "samples.jsonl": ("query_id", "sample_index", "seed"),
        "pass_rates.jsonl": ("query_id", "num_samples"),
    },
    "dapo": {"steps.jsonl": ("step",)},
    "evaluate": {"records.jsonl": ("policy", "query_id", "sample_index", "seed")},
}
"""Stages whose outputs hold what a model server sampled, and which fields of their rows every run repeats, in order.

All others are deterministic: the same inputs give the same bytes. A server batches requests as they come, and the sums
of a batch depend on what is in it; so the same seed may draw another token, seldom, and all that follows it differs.
"""


class Verdict(StrEnum):
    """What a comparison says of a cell."""

    IDENTICAL = "identical"
    """Every output has the same bytes."""
    SAME_ROWS = "same rows"
    """A sampled stage has the rows of the other run, in the same order, and its files; what was sampled differs."""
    INPUTS_DIFFER = "inputs differ"
    """Deterministic, but outputs of another cell that it reads differ."""
    ASKED_OTHERWISE = "asked otherwise"
    """Code, params, command or sources differ, and so do outputs: the runs are not two of the same."""
    DIFFERS = "differs"
    """Bytes differ though no input does, or a sampled stage has other rows or files."""


REPRODUCED = frozenset({Verdict.IDENTICAL, Verdict.SAME_ROWS, Verdict.INPUTS_DIFFER})
"""Verdicts that contradict nothing; a cell with differing inputs follows from another cell's own verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutComparison:
    """One output in two runs."""

    path: str
    identical: bool
    difference: Difference | None
    """None for identical outputs that are not a server's samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellComparison:
    """One cell in two runs."""

    cell: str
    sampled: bool
    verdict: Verdict
    inputs: tuple[str, ...]
    """Inputs, params and code that differ; `command` where that differs."""
    outs: tuple[OutComparison, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a checkout holds of its last run."""

    root: Path
    entries: Mapping[str, Any]
    """dvc.lock's by cell."""

    def outs(self, cell: str) -> dict[str, str]:
        """Return the md5 of each output by path."""
        return _hashes(self.entries[cell], "outs")


def read_run(root: Path, only: Sequence[str] = ()) -> Run:
    """Read what has run in a checkout.

    Args:
        root: the checkout.
        only: cells or whole stages to look at; empty means all.

    Raises:
        UserError: it is no checkout, nothing has run there, or a cell asked for has not.
    """
    if not (root / "dvc.yaml").is_file() or not (root / "params.yaml").is_file():
        raise UserError(f"{root} is not a checkout: it has no dvc.yaml and params.yaml")
    entries = read_lock(root)
    if not entries:
        raise UserError(
            f"nothing has run in {root}: its dvc.lock is missing or empty; run it first"
        )
    missing = [name for name in only if not any(_is_named(cell, name) for cell in entries)]
    if missing:
        raise UserError(f"{root} has no finished {', '.join(missing)}; it has {', '.join(entries)}")
    chosen = {
        cell: entry
        for cell, entry in entries.items()
        if not only or any(_is_named(cell, name) for name in only)
    }
    return Run(root=root, entries=chosen)


def compare_runs(first: Run, second: Run) -> list[CellComparison]:
    """Compare two runs, cell by cell, in the order of the first.

    Raises:
        UserError: they do not have the same cells, or a folder no longer holds what its dvc.lock says.
    """
    _require_same_cells(first, second)
    changed = {
        path for cell in first.entries for path in _unequal(first.outs(cell), second.outs(cell))
    }
    return [_compare_cell(first, second, cell, changed) for cell in first.entries]


def _require_same_cells(first: Run, second: Run) -> None:
    extra = [
        f"{', '.join(sorted({*here.entries} - {*there.entries}))} only in {here.root}"
        for here, there in ((first, second), (second, first))
        if {*here.entries} - {*there.entries}
    ]
    if extra:
        raise UserError(
            f"the runs do not have the same cells: {'; '.join(extra)}; run them there too, "
            "or name what to compare with --only"
        )


def _compare_cell(first: Run, second: Run, cell: str, changed: set[str]) -> CellComparison:
    stage = cell.partition("@")[0]
    derived, given = _inputs(first.entries[cell], second.entries[cell], changed)
    outs = tuple(_compare_outs(first, second, cell, SAMPLED.get(stage, {})))
    return CellComparison(
        cell=cell,
        sampled=stage in SAMPLED,
        verdict=_verdict(outs, sampled=stage in SAMPLED, derived=derived, given=given),
        inputs=(*given, *derived),
        outs=outs,
    )


def _verdict(
    outs: Sequence[OutComparison], *, sampled: bool, derived: Sequence[str], given: Sequence[str]
) -> Verdict:
    if all(out.identical for out in outs):
        return Verdict.IDENTICAL
    if given:
        return Verdict.ASKED_OTHERWISE
    if sampled:
        same = all(out.difference is None or out.difference.same_form is not False for out in outs)
        return Verdict.SAME_ROWS if same else Verdict.DIFFERS
    return Verdict.INPUTS_DIFFER if derived else Verdict.DIFFERS


def _inputs(one: Any, other: Any, changed: set[str]) -> tuple[list[str], list[str]]:
    """Return the inputs that differ: those that other cells made, and those that the runs were given."""
    deps = _unequal(_hashes(one, "deps"), _hashes(other, "deps"))
    derived = [dep for dep in deps if any(_overlap(dep, path) for path in changed)]
    given = [dep for dep in deps if dep not in derived]
    given += [f"params {key}" for key in _unequal(_params(one), _params(other))]
    given += ["command"] if one.get("cmd") != other.get("cmd") else []
    return derived, given


def _overlap(dep: str, out: str) -> bool:
    return dep == out or out.startswith(f"{dep}/") or dep.startswith(f"{out}/")


def _compare_outs(
    first: Run, second: Run, cell: str, keys: Mapping[str, tuple[str, ...]]
) -> Iterator[OutComparison]:
    one, other = first.outs(cell), second.outs(cell)
    for path in sorted({*one, *other}):
        identical, name = one.get(path) == other.get(path), Path(path).name
        if identical and name not in keys:
            yield OutComparison(path=path, identical=True, difference=None)
            continue
        places = (_place(first, cell, path), _place(second, cell, path))
        found = compare_rows(*places, keys[name]) if name in keys else compare_files(*places)
        yield OutComparison(path=path, identical=identical, difference=found)


def _place(run: Run, cell: str, path: str) -> Path:
    """Return where an output lies.

    Raises:
        UserError: what lies there is not what the run wrote.
    """
    recorded, place = run.outs(cell).get(path), run.root / path
    if recorded is None:
        raise UserError(f"{cell} of {run.root} has no output {path}: its dvc.yaml is another")
    if not place.exists() or Hasher(run.root / ".scratch" / "hashes.json").md5(place) != recorded:
        raise UserError(
            f"{place} is not what dvc.lock says {cell} wrote: bring it back with `dvc checkout`, "
            "or run `dvc repro` there"
        )
    return place


def _hashes(entry: Any, kind: str) -> dict[str, str]:
    return {item["path"]: item.get("md5", "") for item in entry.get(kind, ())}


def _params(entry: Any) -> dict[str, Any]:
    return {
        key: value for values in entry.get("params", {}).values() for key, value in values.items()
    }


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]


def _is_named(cell: str, name: str) -> bool:
    return name in (cell, cell.partition("@")[0])
