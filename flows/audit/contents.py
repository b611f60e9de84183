"""Filling the index with the rows of ledgers and data sets, each content once."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import duckdb

from flows.audit.formats import Format, Item, format_of, is_folder_of_rows, read_items
from flows.audit.locate import Contents, Hint
from flows.audit.runs import Run
from flows.audit.tables import insert

BATCH_ROWS = 200_000
"""Rows that are kept in memory before they go into the index."""


@dataclass(kw_only=True, slots=True)
class _Batch:
    """Files that have been read and are not in the index yet."""

    files: list[tuple[int, str, Format]] = field(default_factory=list)
    items: list[tuple[int, Item]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, md5: str, form: Format, items: Sequence[Item]) -> None:
        self.files.append((number, md5, form))
        self.counts[number] = len(items)
        self.items += [(number, item) for item in items]


def fill(connection: duckdb.DuckDBPyConnection, contents: Contents, runs: Sequence[Run]) -> None:
    """Read every file of rows that a run wrote or read and that the index does not hold."""
    _fill_listings(connection, contents, runs)
    known = {md5 for (md5,) in connection.execute("SELECT md5 FROM files").fetchall()}
    batch, number = _Batch(), len(known)
    for md5, (name, hint) in _wanted(connection, runs).items():
        form = format_of(name)
        content = contents.read(md5, hint) if form and md5 not in known else None
        if form is None or content is None:
            continue
        try:
            items = list(read_items(content, form))
        except ValueError as error:
            print(f"audit: {name} {md5} is left out: {error}", file=sys.stderr)
            continue
        number += 1
        batch.add(number, md5, form, items)
        if len(batch.items) >= BATCH_ROWS:
            _write(connection, batch)
            batch = _Batch()
    _write(connection, batch)


def _wanted(
    connection: duckdb.DuckDBPyConnection, runs: Iterable[Run]
) -> dict[str, tuple[str, Hint]]:
    """Return name and place of every file of rows by its md5."""
    listings: dict[str, list[tuple[str, str]]] = {}
    text = "SELECT dir, path, md5 FROM listings"
    for folder, path, md5 in connection.execute(text).fetchall():
        listings.setdefault(folder, []).append((path, md5))
    found: dict[str, tuple[str, Hint]] = {}
    for run in runs:
        for path, md5, hint in _places(run):
            if format_of(path):
                found.setdefault(md5, (path, hint))
            for name, inner in listings.get(md5, ()):
                found.setdefault(inner, (name, hint.below(name)))
    return found


def _places(run: Run) -> Iterator[tuple[str, str, Hint]]:
    for path, md5 in run.outs.items():
        yield path, md5, Hint(identity=run.identity, path=path)
    for path, md5 in run.deps.items():
        yield path, md5, Hint(identity=None, path=path)


def _fill_listings(
    connection: duckdb.DuckDBPyConnection, contents: Contents, runs: Iterable[Run]
) -> None:
    known = {md5 for (md5,) in connection.execute("SELECT DISTINCT dir FROM listings").fetchall()}
    rows: list[tuple[str, str, str]] = []
    for run in runs:
        for path, md5, hint in _places(run):
            if is_folder_of_rows(path) and md5 not in known:
                files = contents.listing(md5, hint)
                known |= {md5} if files else set()
                rows += [(md5, name, inner) for name, inner in (files or {}).items()]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    insert(connection, "listings", dict(zip(("dir", "path", "md5"), columns, strict=True)))


def _write(connection: duckdb.DuckDBPyConnection, batch: _Batch) -> None:
    """Add a batch in one transaction: a file is in the index with all its rows, or not at all."""
    connection.begin()
    files, items = batch.files, batch.items
    insert(
        connection,
        "files",
        {
            "id": [number for number, _, _ in files],
            "md5": [md5 for _, md5, _ in files],
            "format": [form.name for _, _, form in files],
            "num_rows": [batch.counts[number] for number, _, _ in files],
        },
    )
    insert(
        connection,
        "items",
        {
            "file": [number for number, _ in items],
            "line": [item.line for _, item in items],
            "query_id": [item.query_id for _, item in items],
            "item_id": [item.item_id for _, item in items],
            "source": [item.source or "" for _, item in items],
            "dropped": [item.dropped for _, item in items],
            "detail": [item.detail for _, item in items],
        },
    )
    _write_questions(connection, [item for _, item in items])
    connection.commit()


def _write_questions(connection: duckdb.DuckDBPyConnection, items: Sequence[Item]) -> None:
    """Add what is asked, with the form in which select and the exact-match reward compare questions."""
    questions = {item.query_id: item.question for item in items if item.question}
    if not questions:
        return
    from afm.rewards.exact_match import normalise

    insert(
        connection,
        "questions",
        {
            "query_id": list(questions),
            "question": list(questions.values()),
            "key": [normalise(question) for question in questions.values()],
        },
    )
