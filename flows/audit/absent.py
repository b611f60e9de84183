"""`afm audit verify --absent`: prove that something is in no data set of a model's chain, by reading every row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from afm.ids import text_sha256
from flows.audit.evidence import Evidence
from flows.audit.formats import Format, Item, format_of, is_folder_of_rows, read_items
from flows.audit.graph import Model
from flows.audit.locate import Hint
from flows.audit.models import resolve
from flows.audit.render import SHOWN
from flows.audit.runs import Run
from flows.workspace import Workspace

_ID = re.compile(r"[0-9a-f]{16}")
"""Of a query or a trajectory: these every row names itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row that names what should be absent."""

    path: str
    md5: str
    line: int
    cell: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What reading every row of a chain gave."""

    model: Model
    what: str
    read: tuple[str, ...]
    """Files that were read, with their md5."""
    rows: int
    found: tuple[Row, ...]
    unread: tuple[str, ...]
    """Files that lie nowhere whole, and rows of queries that no file holds: with one of them, nothing is proved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    path: str
    md5: str
    cell: str
    form: Format
    items: tuple[Item, ...]


def absent(workspace: Workspace, text: str, what: str) -> Proof:
    """Look for something in every file of rows that a model's chain read or wrote.

    Rows of trajectories and ledgers name neither source nor question: they are looked at by the ids of the queries that
    have these. A row of a query that no query file of the chain holds therefore makes such a proof impossible.

    Args:
        workspace: where to look.
        text: the model.
        what: a query id, a trajectory id, the name of a source, or the sha256 of a question's text.

    Raises:
        UserError: the text names no model, or several.
    """
    evidence = Evidence(workspace=workspace)
    model = resolve(evidence.graph, evidence.current, text)
    files, unread = _read(evidence, model.run)
    asked = {i.query_id: i for f in files if f.form.name == "Query" for i in f.items}
    ids = {what, *(key for key, item in asked.items() if what in (item.source, _hash(item)))}
    found = [
        Row(path=file.path, md5=file.md5, line=item.line, cell=file.cell)
        for file in files
        for item in file.items
        if item.query_id in ids or item.item_id in ids
    ]
    strays = {
        f"query {i.query_id} of {f.path}" for f in files for i in f.items if i.query_id not in asked
    }
    return Proof(
        model=model,
        what=what,
        read=tuple(f"{file.path} {file.md5}" for file in files),
        rows=sum(len(file.items) for file in files),
        found=tuple(found),
        unread=(*unread, *(() if _ID.fullmatch(what) else sorted(strays))),
    )


def _read(evidence: Evidence, last: Run) -> tuple[list[_File], list[str]]:
    """Return the files of rows of a chain, each content once, and the names of those that lie nowhere whole."""
    files: dict[str, _File] = {}
    unread: dict[str, str] = {}
    for run in evidence.graph.chain(last):
        for path, md5, hint in _places(evidence, run):
            form = format_of(path)
            content = evidence.contents.read(md5, hint) if form and md5 not in files else None
            if form is not None and content is not None:
                items = tuple(read_items(content, form))
                files[md5] = _File(path=path, md5=md5, cell=run.cell, form=form, items=items)
            elif md5 not in files:
                unread[md5] = f"{path} {md5}"
    return list(files.values()), [name for md5, name in unread.items() if md5 not in files]


def _hash(item: Item) -> str:
    return text_sha256(item.question or "")


def _places(evidence: Evidence, run: Run) -> Iterator[tuple[str, str, Hint]]:
    for path, md5 in (*run.outs.items(), *run.deps.items()):
        hint = Hint(identity=run.identity, path=path)
        if format_of(path):
            yield path, md5, hint
        elif is_folder_of_rows(path):
            inner = evidence.contents.listing(md5, hint)
            if inner is None:
                yield path, md5, hint
            for name, at in (inner or {}).items():
                if format_of(name):
                    yield f"{path}/{name}", at, hint.below(name)


def lines(proof: Proof) -> Iterator[str]:
    """Yield what was found, what could not be read, and the verdict."""
    model = proof.model
    yield f"{proof.what} in the chain of {model.run.cell}  {model.path}  md5 {model.md5}"
    for row in proof.found[:SHOWN]:
        yield f"FOUND {row.path} line {row.line}  md5 {row.md5}  by {row.cell}"
    if len(proof.found) > SHOWN:
        yield f"and {len(proof.found) - SHOWN} more: `--json` has them"
    yield from (f"NOT READ {name}: it lies nowhere whole here" for name in proof.unread)
    size = f"{proof.rows} rows of {len(proof.read)} files read"
    if proof.found:
        yield f"not absent: {len(proof.found)} rows name it; {size}"
    elif proof.unread:
        yield f"not proved: {len(proof.unread)} could not be read; {size}"
    else:
        yield f"absent: no row names it; {size}"
        yield from (f"  {name}" for name in proof.read)
