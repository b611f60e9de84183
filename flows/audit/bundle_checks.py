"""What is checked of a bundle: that its files, records, statements, ledgers and lock files say the same."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.audit.bundle import (
    INDEX,
    PARAMS,
    PROVENANCE,
    RECORD,
    VERIFICATION,
    Bundle,
    Kept,
    Part,
    files_below,
)
from flows.audit.evidence import Finding, as_written
from flows.audit.export_provenance import FOLDER, Sums, claims, digests, files_in, named, statement
from flows.audit.formats import file_name
from flows.audit.history import git_blob, parse_entry, split_entries
from flows.audit.locate import DIR
from flows.audit.runs import Run, run_of_entry, run_of_record
from flows.audit.verify_records import differences, identity_failures
from flows.audit.verify_sums import LEDGERS, METRICS, ledger_sums
from flows.hashing import listing_md5
from flows.records import Record, digest_of


@dataclass(kw_only=True)
class Case:
    """A bundle under test."""

    folder: Path
    bundle: Bundle
    notes: list[str] = field(default_factory=list)

    @cached_property
    def digests(self) -> dict[str, tuple[str, str]]:
        """md5 and sha256 of every file that is there; links are not followed."""
        places = {name: self.folder / name for name in files_below(self.folder)}
        return {
            name: digests(at) for name, at in places.items() if at.is_file() and not at.is_symlink()
        }

    @cached_property
    def records(self) -> dict[str, Record]:
        """Records that can be read, by the folder of their run."""
        found = {}
        for part in self.bundle.runs:
            try:
                found[part.folder] = Record.model_validate_json(
                    self.body(f"{part.folder}/{RECORD}")
                )
            except ValidationError:
                continue  # _records names it
        return found

    def body(self, name: str | None) -> bytes:
        """Return a file's bytes; nothing where it is missing, which is a finding of its own."""
        return (self.folder / name).read_bytes() if name in self.digests and name else b""

    def document(self, name: str) -> Any:
        """Return a JSON document; None for one that is missing or broken."""
        try:
            return json.loads(self.body(name))
        except ValueError:
            return None

    def entry(self, part: Part) -> tuple[Run, Mapping[str, Any]] | None:
        """Return what its dvc.lock says of a run, if that has the run's outputs."""
        for key, text in split_entries(self.body(part.lock)).items():
            found = parse_entry(text) if text.strip().startswith(f"{part.cell}:") else None
            run = run_of_entry(*found, key) if found else None
            if found and run and dict(run.outs) == part.outs:
                return run, found[1]
        return None


def _files(case: Case) -> Iterator[Finding]:
    """Every file is there, has its digest, and there is no other."""
    expected = case.bundle.files
    for name, sha256 in expected.items():
        found = case.digests.get(name)
        if found is None:
            yield Finding(what=name, why="is missing, or is no plain file")
        elif found[1] != sha256:
            yield Finding(what=name, why=f"its sha256 is not what {INDEX} says")
    for name in files_below(case.folder):
        if name not in expected:
            yield Finding(what=name, why=f"is not in {INDEX}")
    if (case.folder / INDEX).read_bytes() != as_written(case.bundle.model_dump()):
        yield Finding(what=INDEX, why="was edited: it is not as an export writes it")


def _records(case: Case) -> Iterator[Finding]:
    """Every record is as it was written, and the index and the params say the same of its run."""
    for part in case.bundle.runs:
        what = f"{part.folder}/{RECORD}"
        if not part.has_record:
            case.notes.append(f"{part.cell} has no record: dvc.lock alone tells of it")
            continue
        record = case.records.get(part.folder)
        if record is None:
            yield Finding(what=what, why="is no run record")
            continue
        if not record.digest:
            case.notes.append(f"{what} has no digest, so only what others repeat was checked")
        elif record.digest != digest_of(case.document(what)):
            yield Finding(what=what, why="was edited: its digest is another")
        if (record.cell, record.outs, record.deps) != (part.cell, part.outs, part.deps):
            yield Finding(what=what, why=f"{INDEX} has another cell, inputs or outputs")
        if file_name(part.folder) != record.identity:
            yield Finding(what=what, why=f"is the record of {record.identity}")
        if case.document(f"{part.folder}/{PARAMS}") != record.params:
            yield Finding(what=f"{part.folder}/{PARAMS}", why="is not what the record says")


def _provenance(case: Case) -> Iterator[Finding]:
    """Every statement says what its record says, and its folders are made of the files that it names."""
    for part in case.bundle.runs:
        what, record = f"{part.folder}/{PROVENANCE}", case.records.get(part.folder)
        entry = case.entry(part)
        run = run_of_record(record, "") if record else entry and entry[0]
        if run is None:
            yield Finding(what=what, why="neither a record nor dvc.lock tells of this run")
            continue
        told, expected = case.document(what), statement(run, record, Sums(contents=None))
        try:
            agrees = claims(told) == claims(expected)
            broken = list(_broken(told))
        except (LookupError, TypeError, AttributeError):
            agrees, broken = False, []
        if not agrees:
            yield Finding(what=what, why="is not what the record or dvc.lock of its run says")
        for name in broken:
            yield Finding(
                what=what, why=f"the files that it names in {name} do not give its digest"
            )


def _broken(document: Any) -> Iterator[str]:
    """Name the folders of a statement whose files do not give their digest."""
    for one in named(document):
        inner = files_in(document, one["name"]) if FOLDER in one.get("digest", {}) else {}
        listing = {name: digest["md5"] for name, digest in inner.items()}
        if inner and listing_md5(listing) != f"{one['digest'][FOLDER]}{DIR}":
            yield one["name"]


def _contents(case: Case) -> Iterator[Finding]:
    """Every ledger, card and metrics file has the md5 that its run's record names."""
    for part in case.bundle.runs:
        for kept in part.kept:
            found = case.digests.get(kept.file)
            if part.outs.get(kept.path) != kept.md5:
                yield Finding(what=kept.file, why=f"{part.cell} did not write md5 {kept.md5} there")
            elif found is not None and found[0] != kept.md5:
                yield Finding(what=kept.file, why=f"its md5 is not the {kept.md5} of {part.cell}")


def _books(case: Case) -> Iterator[Finding]:
    """Every ledger adds up to the metrics, and these are the record's."""
    for part in case.bundle.runs:
        record = case.records.get(part.folder)
        metrics = case.document(_kept(part, METRICS))
        if record is not None and metrics is not None and metrics != record.metrics:
            yield Finding(what=_kept(part, METRICS), why="differs from the metrics in the record")
        ledger, stage = _kept(part, "ledger.jsonl"), part.cell.partition("@")[0]
        if stage not in LEDGERS or ledger not in case.digests or metrics is None:
            continue
        try:
            rows = [json.loads(line) for line in case.body(ledger).splitlines()]
            sums = list(ledger_sums(stage, metrics, rows))
        except (ValueError, LookupError, TypeError) as error:
            yield Finding(what=ledger, why=f"cannot be added up: {error}")
            continue
        for name, one, other in sums:
            if one != other:
                yield Finding(what=ledger, why=f"{name}: {one} is not {other}")


def _kept(part: Part, name: str) -> str:
    found: list[Kept] = [one for one in part.kept if file_name(one.path) == name]
    return found[0].file if found else f"{part.folder}/{name}"


def _locks(case: Case) -> Iterator[Finding]:
    """Every dvc.lock has the name that git gives to its content, and tells of the run as its record does."""
    for part in case.bundle.runs:
        record = case.records.get(part.folder)
        yield from _constraints(case, part, record)
        if part.lock is None:
            case.notes.append(f"no dvc.lock names the outputs of {part.cell}")
            continue
        if part.lock != f"locks/{git_blob(case.body(part.lock))}.lock":
            yield Finding(what=part.lock, why="is not the content that its name says")
        entry = case.entry(part)
        if entry is None:
            yield Finding(what=part.lock, why=f"has no entry of {part.cell} with these outputs")
        elif record is not None:
            wrong = [*differences(*entry, record), *identity_failures(entry[1], record)]
            yield from (Finding(what=f"{part.lock}: {part.cell}", why=why) for why in wrong)


def _constraints(case: Case, part: Part, record: Record | None) -> Iterator[Finding]:
    if record is None:
        return
    if part.constraints is None:
        case.notes.append(f"the pinned packages of {part.cell} are not in the bundle: their md5 is")
    elif case.digests.get(part.constraints, ("",))[0] != record.constraints:
        yield Finding(
            what=part.constraints, why=f"its md5 is not {record.constraints}, of {part.cell}"
        )


def _chain(case: Case) -> Iterator[Finding]:
    """What a run read, one before it wrote, down to the model; a score also reads of models that are not this one."""
    own, written = (case.bundle.path, case.bundle.md5), set[tuple[str, str]]()
    for part in case.bundle.runs:
        made = {content for _, content in written}
        for path, md5 in part.deps.items():
            if path.startswith("data/") and md5 not in made:
                why = f"read {path}, md5 {md5}, which no run here wrote"
                yield Finding(what=part.cell, why=why)
        written |= set(part.outs.items())
        if own in written:
            if part.cell != case.bundle.cell:
                yield Finding(
                    what=INDEX, why=f"{part.cell} wrote the model, not {case.bundle.cell}"
                )
            return
    yield Finding(what=own[0], why=f"md5 {own[1]} was written by no run here")


def _verification(case: Case) -> Iterator[Finding]:
    """Where it was exported, everything agreed."""
    report = case.document(VERIFICATION)
    if not isinstance(report, dict) or not isinstance(report.get("failures"), list):
        yield Finding(what=VERIFICATION, why="tells of no verification")
        return
    for one in report["failures"]:
        told = ": ".join(map(str, one.values())) if isinstance(one, dict) else str(one)
        yield Finding(what=VERIFICATION, why=f"failed where it was exported: {told}")


CHECKS: dict[str, Callable[[Case], Iterator[Finding]]] = {
    "files": _files,
    "records": _records,
    "provenance": _provenance,
    "contents": _contents,
    "books": _books,
    "locks": _locks,
    "chain": _chain,
    "verification": _verification,
}
"""By name."""
