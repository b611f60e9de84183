"""What the graph of the page shows: the runs behind what dvc.lock holds now, and what passed between them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flows.audit.index import Index
from flows.audit.locate import DIR, Hint
from flows.audit.runs import Run
from flows.hashing import listing_md5


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Something that a run read and that no run wrote."""

    path: str
    md5: str

    @property
    def key(self) -> str:
        """Name of its node."""
        return f"given-{self.md5.removesuffix(DIR)[:16]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """What one run read of what another one wrote, or of what was given."""

    source: str
    """Key of a run or of something given."""
    target: str
    """Key of a run."""
    paths: tuple[str, ...]
    is_proven: bool
    """False where a folder was read that held, by its hash, something else as well or has changed since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The runs of the page and how they hang together."""

    runs: tuple[Run, ...]
    """What is read before what reads it."""
    given: tuple[Given, ...]
    edges: tuple[Edge, ...]
    older: frozenset[str]
    """Keys of runs that something rests on, though dvc.lock holds another run of their cell by now, or none."""


def key_of(run: Run) -> str:
    """Return the name of a run's node: the same on every page that shows it."""
    return f"run-{run.identity or run.entry[:16]}"


def read_chain(index: Index) -> Chain:
    """Find the runs that made what dvc.lock holds now, or the newest of each cell where there is none."""
    newest = current_runs(index)
    runs: dict[str, Run] = {}
    for run in newest:
        runs |= {key_of(one): one for one in index.graph.chain(run) if key_of(one) not in runs}
    reads = [read for run in runs.values() for read in _reads(index, run, runs.values())]
    given = {source.key: source for source, *_ in reads if isinstance(source, Given)}
    return Chain(
        runs=tuple(runs.values()),
        given=tuple(given.values()),
        edges=tuple(_merged(reads)),
        older=frozenset(runs.keys() - {key_of(run) for run in newest}),
    )


def current_runs(index: Index) -> list[Run]:
    """Return the newest run of each cell among those all of whose outputs dvc.lock holds, oldest first."""
    now = index.current
    fits = [
        run
        for run in index.graph.runs
        if not now or all(now.get(path) == md5 for path, md5 in run.outs.items())
    ]
    return sorted({run.cell: run for run in fits}.values(), key=lambda run: run.started)


_Read = tuple[Given | Run, Run, str, bool]
"""Source, reader, path, whether the hash proves it."""


def _reads(index: Index, run: Run, shown: Iterable[Run]) -> Iterator[_Read]:
    for path, md5, maker in index.graph.upstream(run):
        below = [] if maker else [one for one in shown if one is not run and _wrote(one, path)]
        if maker is not None:
            yield maker, run, path, True
        elif below:
            is_proven = _listing(index, path) == md5
            yield from ((one, run, path, is_proven) for one in below)
        else:
            yield Given(path=path, md5=md5), run, path, True


def _wrote(run: Run, folder: str) -> bool:
    """Tell whether a run wrote into a folder that another one read as a whole."""
    return any(path.startswith(f"{folder}/") for path in run.outs)


def _listing(index: Index, folder: str) -> str | None:
    """Return the md5 that a folder has if it holds the outputs of dvc.lock and nothing else."""
    files: dict[str, str] = {}
    for path, md5 in index.current.items():
        name = path.removeprefix(f"{folder}/")
        if name == path:
            continue
        if not md5.endswith(DIR):
            files[name] = md5
            continue
        inner = index.contents.listing(md5, Hint(identity=None, path=path))
        if inner is None:
            return None
        files |= {f"{name}/{inside}": value for inside, value in inner.items()}
    return listing_md5(files)


def _merged(reads: Iterable[_Read]) -> Iterator[Edge]:
    """Yield one edge for all that passed between two nodes."""
    found: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for source, reader, path, is_proven in reads:
        key = source.key if isinstance(source, Given) else key_of(source)
        found.setdefault((key, key_of(reader)), []).append((path, is_proven))
    for (source_key, target), parts in found.items():
        yield Edge(
            source=source_key,
            target=target,
            paths=tuple(path for path, _ in parts),
            is_proven=all(is_proven for _, is_proven in parts),
        )
