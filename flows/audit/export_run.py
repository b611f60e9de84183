"""What a bundle holds of one run: its record, params, statement, ledgers, and the lock files that pin it."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from afm.jsonl import write_json
from flows.audit.blobs import Blobs
from flows.audit.bundle import CONTENT, PARAMS, PROVENANCE, RECORD, Kept, Part
from flows.audit.explain import CARD, record_of
from flows.audit.export_provenance import Sums, statement
from flows.audit.formats import file_name
from flows.audit.history import git_blob, parse_entry, split_entries
from flows.audit.index import Index
from flows.audit.locate import Hint
from flows.audit.runs import Run
from flows.audit.verify_records import differences
from flows.hashing import file_md5
from flows.lock_file import LOCK
from flows.records import Record

KEPT = ("ledger.jsonl", "metrics.json", "gate.json", CARD)
"""Outputs that a bundle holds; the rest it names by digest."""


@dataclass(kw_only=True)
class Desk:
    """Where runs are taken from and put."""

    index: Index
    out: Path
    sums: Sums

    @cached_property
    def blobs(self) -> Blobs:
        """Files as commits hold them."""
        return Blobs(self.index.root)


def write_run(desk: Desk, run: Run) -> Part:
    """Write what tells of one run."""
    index, out = desk.index, desk.out
    name = f"runs/{run.cell}/{run.identity or run.entry}"
    record = record_of(index, run)
    write_json(out / name / PROVENANCE, statement(run, record, desk.sums))
    if record is not None:
        shutil.copyfile(index.record_path(run), out / name / RECORD)
        write_json(out / name / PARAMS, record.params)
    kept = [_keep(desk, run, path, md5, name) for path, md5 in run.outs.items()]
    return Part(
        folder=name,
        cell=run.cell,
        has_record=record is not None,
        outs=dict(run.outs),
        deps=dict(run.deps),
        kept=[one for one in kept if one],
        lock=_lock(desk, run, record),
        constraints=_constraints(desk, record) if record else None,
    )


def _keep(desk: Desk, run: Run, path: str, md5: str, name: str) -> Kept | None:
    """Copy an output that a bundle holds."""
    if file_name(path) not in KEPT:
        return None
    content = desk.index.contents.read(md5, Hint(identity=run.identity, path=path))
    if content is None:
        return None  # verification.json says so
    place = f"{name}/{CONTENT}/{path}"
    _put(desk.out / place, content)
    return Kept(file=place, path=path, md5=md5)


def _lock(desk: Desk, run: Run, record: Record | None) -> str | None:
    """Copy a version of dvc.lock that has the run, under git's name for it: the oldest that agrees with the record."""
    same = [one for one in desk.index.runs if one.origin == "lock" and one.key == run.key]
    found = sorted(same, key=lambda one: (one.started or float("inf"), one.content))
    best = next((one for one in found if record and _agrees(desk, one, record)), None)
    chosen = best or next(iter(found), None)
    if chosen is None:
        return None
    place = f"locks/{chosen.content}.lock"
    _put(desk.out / place, _lock_body(desk, chosen.content))
    return place


def _agrees(desk: Desk, run: Run, record: Record) -> bool:
    """Tell whether an entry of dvc.lock says what a record says: the same bytes may have come of other inputs."""
    entry = parse_entry(split_entries(_lock_body(desk, run.content))[run.entry])
    if entry is None:
        return False
    whole = replace(run, code=desk.index.code(run))
    return not any(differences(whole, entry[1], record))


def _lock_body(desk: Desk, blob: str) -> bytes:
    own = desk.index.root / LOCK
    body = own.read_bytes() if own.exists() else b""
    return body if git_blob(body) == blob else desk.blobs.read(blob)


def _constraints(desk: Desk, record: Record) -> str | None:
    """Copy the pins of a run's environment."""
    place = f"locks/{record.environment}-{record.constraints}.txt"
    for body in _pins(desk, record):
        _put(desk.out / place, body)
        return place
    return None


def _pins(desk: Desk, record: Record) -> Iterator[bytes]:
    """Yield files that the workspace or the run's commit holds with the md5 that the record names."""
    start = f"constraints/{record.environment}"
    for path in desk.index.root.glob(f"{start}*.txt"):
        if file_md5(path) == record.constraints:
            yield path.read_bytes()
    files = desk.blobs.files(record.git_commit) if record.git_commit else None
    for name, blob in (files or {}).items():
        if name.startswith(start) and desk.blobs.md5(blob) == record.constraints:
            yield desk.blobs.read(blob)


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
