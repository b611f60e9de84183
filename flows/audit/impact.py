"""`afm audit impact`: forward, from a file, a query, a trajectory or a source to every data set and model with it."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from afm.errors import UserError
from flows.audit.formats import TRAINING
from flows.audit.graph import Model, model_of
from flows.audit.index import Index
from flows.audit.rows import Holding, Places, folders, holding, input_named
from flows.audit.runs import Run

Kind = Literal["file", "code", "query", "trajectory", "source"]
Seed = tuple[str | None, str]
"""Where a content was read, None for anywhere, and its md5."""
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
BY_ID = "i.query_id = ?"
_CONDITIONS: Mapping[str, str] = {
    "query": BY_ID,
    "trajectory": "i.item_id = ?",
    "source": "i.query_id IN (SELECT query_id FROM items WHERE source = ?)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A content that holds what was asked for, or came of it."""

    path: str
    md5: str
    matching: int | None
    """Rows asked for that stand there; None where a whole file was asked for."""
    rows: int | None
    dropped: int
    """Rows of a ledger that tell that they were dropped."""
    is_set: bool
    cells: tuple[str, ...]
    """Cells that wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """A model that contains what was asked for, or rests on it."""

    model: Model
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Impact:
    """What follows from one thing."""

    kind: Kind
    what: str
    contents: tuple[str, ...]
    """md5 of the files that were asked for; empty for rows."""
    datasets: tuple[Dataset, ...]
    models: tuple[Reached, ...]
    runs: int
    """Runs that read any of it."""


def impact(index: Index, text: str) -> Impact:
    """Follow one thing forward.

    Raises:
        UserError: nothing is known under that name.
    """
    contents = _contents(index, text)
    if contents:
        return _of_file(index, text, contents)
    for kind in ("query", "trajectory", "source"):
        found = holding(index, _CONDITIONS[kind], [text])
        if found:
            return _of_rows(index, kind, text, found)
    runs = _using_code(index, text)
    if runs:
        return _of_code(text, runs)
    names = [
        name for (name,) in index.query("SELECT DISTINCT source FROM items WHERE source != ''")
    ]
    raise UserError(
        f"nothing known under {text!r}: no file with that path or md5 in any record or dvc.lock, no query_id or "
        f"trajectory_id in any data set that lies here, and no source; sources are {', '.join(sorted(names)) or 'none'}"
    )


def containing(index: Index, holdings: Sequence[Holding]) -> list[Reached]:
    """Return the models that were trained on rows, and those that were trained from these models."""
    held = {one.md5: one for one in holdings if one.is_set}
    found: dict[int, Reached] = {}
    waiting: list[Model] = []
    for md5, one in held.items():
        for run in index.graph.readers(md5):
            source = input_named(run, TRAINING.get(run.stage, ""))
            model = model_of(run)
            if model is not None and source is not None and source[1] == md5:
                how = f"trained on {one.matching} of {one.rows} rows of {source[0]}"
                found[id(run)] = Reached(model=model, how=how)
                waiting.append(model)
    while waiting:
        parent = waiting.pop()
        for run in index.graph.readers(parent.md5):
            model = model_of(run)
            if model is not None and id(run) not in found:
                how = f"trained from {parent.run.cell} {parent.md5}"
                found[id(run)] = Reached(model=model, how=how)
                waiting.append(model)
    return sorted(found.values(), key=lambda one: one.model.run.started)


def _of_rows(index: Index, kind: Kind, text: str, found: Sequence[Holding]) -> Impact:
    places = Places(index, index.graph.runs)
    datasets = [
        Dataset(
            path=places.of(one.md5)[-1].path if places.of(one.md5) else "(an input)",
            md5=one.md5,
            matching=one.matching,
            rows=one.rows,
            dropped=one.dropped,
            is_set=one.is_set,
            cells=tuple(dict.fromkeys(place.run.cell for place in places.of(one.md5))),
        )
        for one in found
    ]
    outer = {
        place.run.outs.get(place.path.rpartition("/")[0], place.md5): place
        for one in found
        for place in places.of(one.md5)
    }
    readers = {
        id(run) for md5 in {*outer, *(one.md5 for one in found)} for run in index.graph.readers(md5)
    }
    return Impact(
        kind=kind,
        what=text,
        contents=(),
        datasets=tuple(sorted(datasets, key=lambda one: (not one.is_set, one.path, one.md5))),
        models=tuple(containing(index, found)),
        runs=len(readers),
    )


def _of_file(index: Index, text: str, contents: Sequence[Seed]) -> Impact:
    found = {run.entry: run for at, md5 in contents for run in index.graph.downstream(at, md5)}
    runs = sorted(found.values(), key=lambda run: run.started)
    models = [model for run in runs if (model := model_of(run)) is not None]
    datasets = [
        Dataset(
            path=path, md5=md5, matching=None, rows=None, dropped=0, is_set=True, cells=(run.cell,)
        )
        for run in runs
        for path, md5 in run.outs.items()
        if model_of(run) is None
    ]
    unique = {(one.path, one.md5): one for one in datasets}
    return Impact(
        kind="file",
        what=text,
        contents=tuple(md5 for _, md5 in contents),
        datasets=tuple(sorted(unique.values(), key=lambda one: (one.path, one.md5))),
        models=tuple(Reached(model=model, how=_through(model, contents)) for model in models),
        runs=len(runs),
    )


def _of_code(text: str, runs: Sequence[tuple[str, Run]]) -> Impact:
    models = [
        Reached(model=model, how=f"made with {text} {md5}")
        for md5, run in runs
        if (model := model_of(run)) is not None
    ]
    datasets = [
        Dataset(
            path=path, md5=out, matching=None, rows=None, dropped=0, is_set=True, cells=(run.cell,)
        )
        for _, run in runs
        for path, out in run.outs.items()
        if model_of(run) is None
    ]
    return Impact(
        kind="code",
        what=text,
        contents=tuple(sorted({md5 for md5, _ in runs})),
        datasets=tuple(datasets),
        models=tuple(models),
        runs=len(runs),
    )


def _through(model: Model, contents: Collection[Seed]) -> str:
    known = {md5 for _, md5 in contents}
    direct = [path for path, md5 in model.run.deps.items() if md5 in known]
    return f"reads {', '.join(direct)}" if direct else "rests on what came of it"


def _contents(index: Index, text: str) -> list[Seed]:
    """Return what a hash, an identity or a path means; a path as the workspace has it, or every version of it."""
    inner = folders(index)
    if _MD5.fullmatch(text):
        outer = [folder for folder, files in inner.items() if text in files.values()]
        known = index.graph.makers(text) or index.graph.readers(text)
        return [(None, md5) for md5 in (text, *outer)] if known or outer else []
    own = [run for run in index.graph.runs if run.identity == text]
    if own:
        return list(own[-1].outs.items())
    path = text.removeprefix(f"{index.root}/").removeprefix("./").rstrip("/")
    folder, _, name = path.rpartition("/")
    if path in index.current:
        return [(path, index.current[path])]
    if name in inner.get(index.current.get(folder, ""), {}):
        return [(folder, index.current[folder])]
    every = (item for run in index.graph.runs for item in (*run.deps.items(), *run.outs.items()))
    return list(dict.fromkeys((at, md5) for at, md5 in every if at == path))


def _using_code(index: Index, path: str) -> list[tuple[str, Run]]:
    """Return the runs whose stage's code has a file, with the file's md5; a result or a hash may be meant too."""
    text = "SELECT key, md5 FROM code WHERE path = ? OR md5 = ?"
    used = dict(index.query(text, [path, path]))
    return [(used[run.entry], run) for run in index.graph.runs if run.entry in used]
