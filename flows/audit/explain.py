"""`afm audit explain`: the chain of a model, back to the sources, with who, when, how much and under which terms."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.audit.details import (
    Costs,
    costs,
    endpoints,
    judge,
    read_record,
    sources,
    teacher,
    total,
)
from flows.audit.formats import file_name
from flows.audit.graph import Model
from flows.audit.index import Index
from flows.audit.licences import WEIGHTS, Licence, flags, of_card, of_readme
from flows.audit.locate import Hint
from flows.audit.models import registered, resolve
from flows.audit.runs import Run
from flows.records import Record

README, MANIFEST, CARD = "README.md", "manifest.json", "card.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a file of rows holds."""

    rows: int
    items: int
    """Different trajectories, or queries where rows are about these."""
    queries: int
    dropped: dict[str, int]
    """Rows of a ledger that tell of something dropped, by reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """A file or folder in the chain."""

    path: str
    md5: str
    rows: dict[str, Rows]
    """By file name, `` where the content is one file; empty for what holds no rows, or lies nowhere any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Something that a run read."""

    content: Content
    made_by: str | None
    """Entry (see `Link`) of the run that wrote it; None for what no run wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One run of the chain."""

    run: Run
    record: str | None
    """Path of its record; None where only dvc.lock tells of it."""
    reads: tuple[Read, ...]
    wrote: tuple[Content, ...]
    executor: str | None
    job: str | None
    images: tuple[str, ...]
    environment: str | None
    constraints: str | None
    """md5 of the environment's constraints file."""
    teacher: str | None
    judge: str | None
    sources: tuple[str, ...]
    endpoints: tuple[str, ...]
    """Models as their servers named them."""
    costs: Costs | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Where a model comes from."""

    model: Model
    names: tuple[str, ...]
    """How the registry calls it."""
    links: tuple[Link, ...]
    """What is read before what reads it; the last one made the model."""
    total: Costs
    licence: str | None
    """Of the base model, which the trained model inherits."""
    licences: tuple[Licence, ...]
    flags: tuple[str, ...]


def explain(index: Index, text: str) -> Explanation:
    """Explain one model.

    Raises:
        UserError: the text names no model, or several.
    """
    model = resolve(index.graph, index.current, text)
    chain = index.graph.chain(model.run)
    links = links_of(index, chain)
    licence, licences = licences_of(index, chain)
    names = [str(one) for one in registered(index.graph) if one.model.run is model.run]
    return Explanation(
        model=model,
        names=tuple(names),
        links=links,
        total=total([link.costs for link in links if link.costs]),
        licence=licence,
        licences=tuple(licences),
        flags=tuple(flags(licences, licence)),
    )


def links_of(index: Index, runs: Sequence[Run]) -> tuple[Link, ...]:
    """Tell of each run what it read and wrote, and what its record says."""
    rows = _rows(index, runs)
    return tuple(_link(index, run, rows) for run in runs)


def _link(index: Index, run: Run, rows: dict[str, dict[str, Rows]]) -> Link:
    record = record_of(index, run)
    reads = tuple(
        Read(content=_content(path, md5, rows), made_by=maker.entry if maker else None)
        for path, md5, maker in index.graph.upstream(run)
    )
    return Link(
        run=run,
        record=str(index.record_path(run).relative_to(index.home)) if record else None,
        reads=reads,
        wrote=tuple(_content(path, md5, rows) for path, md5 in run.outs.items()),
        executor=record.executor if record else None,
        job=record.job if record else None,
        images=tuple(record.images) if record else (),
        environment=f"{record.environment}, Python {record.python}" if record else None,
        constraints=record.constraints if record else None,
        teacher=teacher(record) if record else None,
        judge=judge(record) if record else None,
        sources=tuple(sources(record)) if record else (),
        endpoints=tuple(str(one.get("model")) for one in endpoints(record)) if record else (),
        costs=costs(record) if record else None,
    )


def record_of(index: Index, run: Run) -> Record | None:
    """Return a run's record; None where only dvc.lock tells of it."""
    return read_record(index.record_path(run), run.content) if run.origin == "record" else None


def _content(path: str, md5: str, rows: dict[str, dict[str, Rows]]) -> Content:
    return Content(path=path, md5=md5, rows=rows.get(md5, {}))


def _rows(index: Index, chain: Sequence[Run]) -> dict[str, dict[str, Rows]]:
    """Count the rows of every content in a chain: by its md5, then by file name."""
    wanted = {md5 for run in chain for md5 in (*run.deps.values(), *run.outs.values())}
    inner = index.query("SELECT dir, path, md5 FROM listings")
    places = [(folder, name, md5) for folder, name, md5 in inner if folder in wanted]
    places += [(md5, "", md5) for md5 in wanted]
    counted = count_rows(index, {md5 for _, _, md5 in places})
    found: dict[str, dict[str, Rows]] = {}
    for folder, name, md5 in sorted(places):
        if md5 in counted:
            found.setdefault(folder, {})[name] = counted[md5]
    return found


def count_rows(index: Index, contents: set[str]) -> dict[str, Rows]:
    """Count the rows of files, by md5."""
    marks = ",".join("?" * len(contents))
    files = index.query(f"SELECT id, md5 FROM files WHERE md5 IN ({marks})", [*contents])
    if not files:
        return {}
    ids = ",".join(str(number) for number, _ in files)
    counts = index.query(
        "SELECT file, count(*), count(DISTINCT item_id), count(DISTINCT query_id) "
        f"FROM items WHERE file IN ({ids}) GROUP BY file"
    )
    dropped: dict[int, dict[str, int]] = {}
    text = (
        f"SELECT file, dropped, count(*) FROM items WHERE file IN ({ids}) AND dropped != '' "
        "GROUP BY file, dropped ORDER BY file, dropped"
    )
    for number, reason, count in index.query(text):
        dropped.setdefault(number, {})[reason] = count
    by_id = {
        number: Rows(rows=rows, items=items, queries=queries, dropped=dropped.get(number, {}))
        for number, rows, items, queries in counts
    }
    empty = Rows(rows=0, items=0, queries=0, dropped={})
    return {md5: by_id.get(number, empty) for number, md5 in files}


def licences_of(index: Index, chain: Sequence[Run]) -> tuple[str | None, list[Licence]]:
    """Return the base model's licence, and those of it and of all sources."""
    own: str | None = None
    found: list[Licence] = []
    for run in chain:
        for path, md5 in run.outs.items():
            hint = Hint(identity=run.identity, path=path)
            if run.stage == "prepare" and file_name(path) == CARD:
                card = index.contents.read(md5, hint)
                found += of_card(card.decode()) if card else []
            if run.stage == "base" and md5.endswith(".dir"):
                readme = index.contents.file_in(md5, README, hint)
                own = of_readme(readme.decode()) if readme else None
                found += [Licence(of=path, part=WEIGHTS, licence=own or "unknown")]
    return own, list(dict.fromkeys(found))
