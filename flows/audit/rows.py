"""Looking up rows: which files hold a query, a trajectory or a source, and which runs wrote or read these files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flows.audit.formats import FORMATS, file_name
from flows.audit.index import Index
from flows.audit.runs import Run

SET_FORMATS = frozenset(form.name for form in FORMATS.values() if form.is_set)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """A file that holds some of the rows asked for."""

    md5: str
    format: str
    matching: int
    """Rows asked for that stand there."""
    rows: int
    dropped: int
    """Rows of a ledger among the matching ones that tell of something dropped."""

    @property
    def is_set(self) -> bool:
        """Whether it is a data set; a ledger also names what was dropped."""
        return self.format in SET_FORMATS


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a content stands as the output of a run."""

    run: Run
    path: str
    """Path of the output, or of the file below it."""
    md5: str


def holding(index: Index, where: str, values: Sequence[str]) -> list[Holding]:
    """Return the files that hold rows.

    Args:
        index: the index.
        where: condition on table `items`.
        values: its values.
    """
    text = (
        "SELECT f.md5, f.format, count(*), f.num_rows, count(*) FILTER (i.dropped != '') "
        f"FROM items i JOIN files f ON f.id = i.file WHERE {where} "
        "GROUP BY f.md5, f.format, f.num_rows ORDER BY f.md5"
    )
    return [
        Holding(md5=md5, format=form, matching=matching, rows=rows, dropped=dropped)
        for md5, form, matching, rows, dropped in index.query(text, values)
    ]


class Places:
    """Which runs wrote a file of rows, on its own or in a folder."""

    def __init__(self, index: Index, runs: Collection[Run]) -> None:
        """Look among `runs`."""
        self._inner = folders(index)
        self._found: dict[str, list[Place]] = {}
        for run in runs:
            for place in self._written(run):
                self._found.setdefault(place.md5, []).append(place)

    def of(self, md5: str) -> Sequence[Place]:
        """Return where a content was written, in the order of the runs."""
        return self._found.get(md5, ())

    def _written(self, run: Run) -> Iterator[Place]:
        for path, md5 in run.outs.items():
            yield Place(run=run, path=path, md5=md5)
            for name, inner in self._inner.get(md5, {}).items():
                yield Place(run=run, path=f"{path}/{name}", md5=inner)


def folders(index: Index) -> dict[str, dict[str, str]]:
    """Return md5 by name of the files of each folder of rows."""
    found: dict[str, dict[str, str]] = {}
    for folder, name, md5 in index.query("SELECT dir, path, md5 FROM listings"):
        found.setdefault(folder, {})[name] = md5
    return found


def input_named(run: Run, name: str) -> tuple[str, str] | None:
    """Return path and md5 of the input with this file name."""
    found = ((path, md5) for path, md5 in run.deps.items() if file_name(path) == name)
    return next(found, None)


def is_current(run: Run, current: Mapping[str, str]) -> bool:
    """Tell whether the workspace's dvc.lock has what a run wrote."""
    return bool(run.outs) and all(current.get(path) == md5 for path, md5 in run.outs.items())


def in_scope(index: Index, *, everything: bool) -> list[Run]:
    """Return the runs that an answer speaks of: of the workspace's dvc.lock, or all.

    Of several runs with the same outputs the newest counts; without dvc.lock, the newest of each cell does.
    """
    runs = index.graph.runs
    if everything:
        return list(runs)
    chosen = [run for run in runs if is_current(run, index.current)] if index.current else runs
    return sorted({run.cell: run for run in chosen}.values(), key=lambda run: run.started)
