"""`afm audit diff`: what sets two models apart: params, code, data, metrics, environment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.audit.details import flatten
from flows.audit.explain import record_of
from flows.audit.formats import file_name
from flows.audit.graph import Model
from flows.audit.index import Index
from flows.audit.models import resolve
from flows.audit.rows import folders
from flows.audit.runs import Run
from flows.records import Record

ENVIRONMENT = (
    "executor",
    "environment",
    "python",
    "constraints",
    "images",
    "git_commit",
    "git_dirty",
)
"""Fields of a record that tell where a run took place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One value in two models."""

    key: str
    first: Any
    """None where it is not there."""
    second: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class DataChange:
    """One file or folder in two models."""

    path: str
    first: str | None
    """md5."""
    second: str | None
    added: tuple[str, ...]
    """Ids of rows that only the second has: `trajectory_id`, or `query_id` where rows are about queries."""
    removed: tuple[str, ...]
    """Ids of rows that only the first has."""
    recounted: tuple[str, ...]
    """Ids that stand there another number of times."""
    edited: tuple[str, ...]
    """Ids whose rows say something else: a measured value, a decision."""
    comparable: bool
    """Whether it holds rows, and both versions lie here; else only the hashes differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageChange:
    """What differs in one stage of the two chains."""

    stage: str
    cells: tuple[str | None, str | None]
    """None where a chain has no such stage."""
    params: tuple[Change, ...] = ()
    code: tuple[Change, ...] = ()
    data: tuple[DataChange, ...] = ()
    metrics: tuple[Change, ...] = ()
    environment: tuple[Change, ...] = ()
    unrecorded: bool = False
    """Whether a run has no record: what only a record tells cannot be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What sets two models apart."""

    first: Model
    second: Model
    same_runs: int
    """Stage runs that both rest on."""
    stages: tuple[StageChange, ...]


def diff(index: Index, first: str, second: str) -> Difference:
    """Compare two models with all they rest on.

    Raises:
        UserError: a text names no model, or several.
    """
    models = [resolve(index.graph, index.current, text) for text in (first, second)]
    chains = [index.graph.chain(model.run) for model in models]
    shared = {run.entry for run in chains[0]} & {run.entry for run in chains[1]}
    pairs = _paired(chains[0], chains[1])
    changes = [
        _stage_change(index, stage, one, other)
        for stage, one, other in pairs
        if one is None or other is None or one.entry != other.entry
    ]
    return Difference(
        first=models[0], second=models[1], same_runs=len(shared), stages=tuple(changes)
    )


def _paired(
    first: Sequence[Run], second: Sequence[Run]
) -> Iterator[tuple[str, Run | None, Run | None]]:
    """Pair the runs of two chains by stage; where a chain has a stage twice, in order."""
    one, other = _numbered(first), _numbered(second)
    for key in dict.fromkeys((*one, *other)):
        yield key[0], one.get(key), other.get(key)


def _numbered(chain: Sequence[Run]) -> dict[tuple[str, int], Run]:
    found: dict[tuple[str, int], Run] = {}
    for run in chain:
        number = sum(stage == run.stage for stage, _ in found)
        found[(run.stage, number)] = run
    return found


def _stage_change(index: Index, stage: str, one: Run | None, other: Run | None) -> StageChange:
    cells = (one.cell if one else None, other.cell if other else None)
    if one is None or other is None:
        return StageChange(stage=stage, cells=cells)
    first, second = record_of(index, one), record_of(index, other)
    return StageChange(
        stage=stage,
        cells=cells,
        params=tuple(_compare(first, second, "params")),
        code=tuple(changes(index.code(one), index.code(other))),
        data=tuple(_data(index, one, other)),
        metrics=tuple(_compare(first, second, "metrics")),
        environment=tuple(_places(first, second)),
        unrecorded=first is None or second is None,
    )


def _compare(first: Record | None, second: Record | None, name: str) -> Iterator[Change]:
    if first is not None and second is not None:
        yield from changes(flatten(getattr(first, name)), flatten(getattr(second, name)))


def _places(first: Record | None, second: Record | None) -> Iterator[Change]:
    if first is not None and second is not None:
        one, other = (
            {name: getattr(side, name) for name in ENVIRONMENT} for side in (first, second)
        )
        yield from changes(one, other)


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the keys whose values differ."""
    for key in sorted({*first, *second}):
        if first.get(key) != second.get(key):
            yield Change(key=key, first=first.get(key), second=second.get(key))


def _data(index: Index, one: Run, other: Run) -> Iterator[DataChange]:
    """Compare what the two runs wrote; what they read, an earlier stage or nobody wrote."""
    inner = folders(index)
    first, second = _files(index, one, inner), _files(index, other, inner)
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if (a and a[1]) != (b and b[1]):
            yield _data_change(index, (a or b or ("", ""))[0], a and a[1], b and b[1])


def _files(
    index: Index, run: Run, inner: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return path and md5 of all that a run wrote, and of what it read that no run wrote, by a key without the cell."""
    given = {path: md5 for path, md5, maker in index.graph.upstream(run) if maker is None}
    found: dict[str, tuple[str, str]] = {}
    for path, md5 in {**given, **run.outs}.items():
        files = inner.get(md5)
        if files:
            found |= {
                f"{file_name(path)}/{name}": (f"{path}/{name}", at) for name, at in files.items()
            }
        else:
            found[_role(path, run)] = (path, md5)
    return found


def _role(path: str, run: Run) -> str:
    """Return a path without the names of the cell: `data/models/sft/mhqa-tiny` -> `data/models/sft/*`."""
    names = list(run.axes.values())
    cells = {"-".join(names[: number + 1]) for number in range(len(names))}
    return "/".join("*" if part in cells else part for part in path.split("/"))


def _data_change(index: Index, path: str, first: str | None, second: str | None) -> DataChange:
    one, other = (_items(index, md5) for md5 in (first, second))
    known = one is not None and other is not None
    one, other = one or {}, other or {}
    both = {*one} & {*other}
    return DataChange(
        path=path,
        first=first,
        second=second,
        added=tuple(sorted({*other} - {*one})) if known else (),
        removed=tuple(sorted({*one} - {*other})) if known else (),
        recounted=tuple(sorted(key for key in both if one[key][0] != other[key][0])),
        edited=tuple(sorted(key for key in both if one[key][1] != other[key][1])),
        comparable=known,
    )


def _items(index: Index, md5: str | None) -> dict[str, tuple[int, str]] | None:
    """Return how often each id stands in a file, and what its rows say; None where the file has no rows or is gone."""
    if not index.query("SELECT 1 FROM files WHERE md5 = ?", [md5]):
        return None
    rows = index.query(
        "SELECT item_id, count(*), string_agg(detail, '' ORDER BY line) FROM items i "
        "JOIN files f ON f.id = i.file WHERE f.md5 = ? GROUP BY item_id",
        [md5],
    )
    return {item: (count, detail) for item, count, detail in rows}
