"""`afm audit verify --absent`: prove that something is in no data set of a model's chain, by reading every row."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from flows.audit.evidence import Evidence
from flows.audit.formats import Format, format_of, is_folder_of_rows, read_items
from flows.audit.graph import Model
from flows.audit.locate import Hint
from flows.audit.models import resolve
from flows.audit.render import SHOWN
from flows.audit.runs import Run
from flows.workspace import Workspace


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
    """Files that lie nowhere whole: with one of them, nothing is proved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    path: str
    md5: str
    hint: Hint
    run: Run


def absent(workspace: Workspace, text: str, what: str) -> Proof:
    """Look for an id, or a source, in every file of rows that a model's chain read or wrote.

    Args:
        workspace: where to look.
        text: the model.
        what: a query id, a trajectory id, or the name of a source.

    Raises:
        UserError: the text names no model, or several.
    """
    evidence = Evidence(workspace=workspace)
    model = resolve(evidence.graph, evidence.current, text)
    found: list[Row] = []
    read, unread, rows = [], [], 0
    files: dict[str, _File] = {}
    for file in (one for run in evidence.graph.chain(model.run) for one in _files(evidence, run)):
        files.setdefault(file.md5, file)
    for file in files.values():
        form = format_of(file.path)
        content = evidence.contents.read(file.md5, file.hint) if form else None
        if form is None or content is None:
            unread.append(f"{file.path} {file.md5}")
            continue
        read.append(f"{file.path} {file.md5}")
        rows += content.count(b"\n")
        found += _search(content, form, what, file)
    return Proof(
        model=model,
        what=what,
        read=tuple(read),
        rows=rows,
        found=tuple(found),
        unread=tuple(unread),
    )


def _files(evidence: Evidence, run: Run) -> Iterator[_File]:
    for path, md5 in (*run.outs.items(), *run.deps.items()):
        hint = Hint(identity=run.identity, path=path)
        if format_of(path):
            yield _File(path=path, md5=md5, hint=hint, run=run)
        elif is_folder_of_rows(path):
            inner = evidence.contents.listing(md5, hint)
            if inner is None:
                yield _File(path=path, md5=md5, hint=hint, run=run)
            for name, at in (inner or {}).items():
                if format_of(name):
                    yield _File(path=f"{path}/{name}", md5=at, hint=hint.below(name), run=run)


def _search(content: bytes, form: Format, what: str, file: _File) -> Iterator[Row]:
    if json.dumps(what)[1:-1].encode() not in content:
        return
    for item in read_items(content, form):
        if what in (item.query_id, item.item_id, item.source):
            yield Row(path=file.path, md5=file.md5, line=item.line, cell=file.run.cell)


def lines(proof: Proof) -> Iterator[str]:
    """Yield what was found, what could not be read, and the verdict."""
    model = proof.model
    yield f"{proof.what} in the chain of {model.run.cell}  {model.path}  md5 {model.md5}"
    for row in proof.found[:SHOWN]:
        yield f"FOUND {row.path} line {row.line}  md5 {row.md5}  by {row.cell}"
    if len(proof.found) > SHOWN:
        yield f"and {len(proof.found) - SHOWN} more: `--json` has them"
    yield from (f"NOT READ {name}: it lies nowhere whole" for name in proof.unread)
    size = f"{proof.rows} rows of {len(proof.read)} files read"
    if proof.found:
        yield f"not absent: {len(proof.found)} rows name it; {size}"
    elif proof.unread:
        yield f"not proved: {len(proof.unread)} files could not be read; {size}"
    else:
        yield f"absent: no row names it; {size}"
        yield from (f"  {name}" for name in proof.read)
