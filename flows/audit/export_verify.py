"""`afm audit verify --bundle`: does a bundle agree with itself and with its signature? Needs no checkout."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afm.errors import UserError
from afm.jsonl import read_json
from flows.audit.bundle import (
    INDEX,
    MODEL,
    PROVENANCE,
    RECORD,
    SIGNATURE,
    Bundle,
    Part,
    files_below,
)
from flows.audit.evidence import Finding, as_written
from flows.audit.export_provenance import Sums, claims, digests, statement
from flows.audit.export_sign import Trust, signature_failure
from flows.audit.history import git_blob, parse_entry, split_entries
from flows.audit.locate import Contents
from flows.audit.runs import Run, run_of_entry, run_of_record
from flows.hashing import file_md5, listing_md5, walk
from flows.records import Record, digest
from flows.workspace import Workspace


@dataclass(kw_only=True)
class Case:
    """A bundle under test."""

    folder: Path
    bundle: Bundle
    trust: Trust | None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def records(self) -> dict[str, Record]:
        """Records that can be read, by the folder of their run."""
        found = {}
        for part in self.bundle.runs:
            path = self.folder / part.folder / RECORD
            try:
                found[part.folder] = Record.model_validate_json(path.read_bytes())
            except (OSError, ValidationError):
                continue  # _records names it
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleReport:
    """What the check of a bundle found."""

    cell: str
    path: str
    md5: str
    runs: int
    files: int
    signed: str | None
    """`key`, `certificate`, or None: nobody signed it."""
    signature_checked: bool
    failures: tuple[Finding, ...]
    notes: tuple[str, ...]


def verify_bundle(folder: Path, trust: Trust | None) -> BundleReport:
    """Check every digest, and the signature where `trust` says whose it should be.

    Raises:
        UserError: the folder is no bundle, or a key cannot be read.
    """
    try:
        bundle = Bundle.model_validate(read_json(folder / INDEX))
    except ValidationError as error:
        raise UserError(
            f"{folder / INDEX} is no index of a bundle: {str(error).splitlines()[0]}"
        ) from error
    case = Case(folder=folder, bundle=bundle, trust=trust)
    found = [one for check in CHECKS.values() for one in check(case)]
    return BundleReport(
        cell=bundle.cell,
        path=bundle.path,
        md5=bundle.md5,
        runs=len(bundle.runs),
        files=len(bundle.files),
        signed=bundle.signed,
        signature_checked=trust is not None and (folder / SIGNATURE).exists(),
        failures=tuple(dict.fromkeys(found)),
        notes=tuple(case.notes),
    )


def _files(case: Case) -> Iterator[Finding]:
    """Every file is there, has its digest, and there is no other."""
    there = files_below(case.folder)
    for name, sha256 in case.bundle.files.items():
        if name not in there:
            yield Finding(what=name, why="is missing")
        elif digests(case.folder / name)[1] != sha256:
            yield Finding(what=name, why=f"its sha256 is not what {INDEX} says")
    for name in there:
        if name not in case.bundle.files:
            yield Finding(what=name, why=f"is not in {INDEX}")
    body = (case.folder / INDEX).read_bytes()
    if body != as_written(case.bundle.model_dump()):
        yield Finding(what=INDEX, why="was edited: it is not as an export writes it")


def _records(case: Case) -> Iterator[Finding]:
    """Every record is as it was written, and the index says the same of its run."""
    for part in case.bundle.runs:
        if not part.has_record:
            case.notes.append(f"{part.cell} has no record: dvc.lock alone tells of it")
            continue
        what = f"{part.folder}/{RECORD}"
        record = case.records.get(part.folder)
        if record is None:
            yield Finding(what=what, why="is no run record")
            continue
        if record.digest != digest(record):
            yield Finding(what=what, why="was edited: its digest is another")
        if (record.cell, record.outs, record.deps) != (part.cell, part.outs, part.deps):
            yield Finding(what=what, why=f"{INDEX} has another cell, inputs or outputs")
        if read_json_or_none(case.folder / part.folder / "params.json") != record.params:
            yield Finding(what=f"{part.folder}/params.json", why="is not what the record says")


def _provenance(case: Case) -> Iterator[Finding]:
    """Every statement says what its record says."""
    for part in case.bundle.runs:
        what = f"{part.folder}/{PROVENANCE}"
        told, run = read_json_or_none(case.folder / what), _run(case, part)
        if run is None:
            continue  # another check names what is missing
        record = case.records.get(part.folder)
        nowhere = Workspace(root=case.folder / "none", home=case.folder / "none")
        expected = statement(run, record, Sums(contents=Contents(nowhere)))
        try:
            agrees = claims(told) == claims(expected)
        except (LookupError, TypeError, AttributeError):
            agrees = False
        if not agrees:
            yield Finding(what=what, why="is not what the record or dvc.lock of its run says")


def _contents(case: Case) -> Iterator[Finding]:
    """Every ledger, card and metrics file, and the model, has the md5 that its record names."""
    for part in case.bundle.runs:
        for kept in part.kept:
            path = case.folder / kept.file
            if part.outs.get(kept.path) != kept.md5:
                yield Finding(what=kept.file, why=f"{part.cell} did not write md5 {kept.md5} there")
            elif path.is_file() and file_md5(path) != kept.md5:
                yield Finding(what=kept.file, why=f"its md5 is not the {kept.md5} of {part.cell}")
    model = case.folder / MODEL
    if model.exists():
        files = {at.relative_to(model).as_posix(): file_md5(at) for at in walk(model)}
        if listing_md5(files) != case.bundle.md5:
            yield Finding(what=MODEL, why=f"its md5 is {listing_md5(files)}, not {case.bundle.md5}")
    else:
        case.notes.append("the model itself is not in the bundle: its md5 and sha256 are")


def _locks(case: Case) -> Iterator[Finding]:
    """Every dvc.lock has the name that git gives to its content, and the outputs of the runs that lean on it."""
    for part in case.bundle.runs:
        if part.lock is None:
            case.notes.append(f"no dvc.lock names the outputs of {part.cell}")
            continue
        name = f"locks/{part.lock}.lock"
        path = case.folder / name
        body = path.read_bytes() if path.is_file() else b""
        if git_blob(body) != part.lock:
            yield Finding(what=name, why="is not the content that its name says")
        elif _locked(body, part) is None:
            yield Finding(what=name, why=f"has no entry of {part.cell} with these outputs")


def _chain(case: Case) -> Iterator[Finding]:
    """What a run read, one before it wrote, down to the model; a score also reads of models that are not this one."""
    own, written = (case.bundle.path, case.bundle.md5), set[tuple[str, str]]()
    for part in case.bundle.runs:
        made = {content for _, content in written}
        for path, md5 in part.deps.items():
            if path.startswith("data/") and md5 not in made:
                yield Finding(
                    what=part.cell, why=f"read {path}, md5 {md5}, which no run here wrote"
                )
        written |= set(part.outs.items())
        if own in written:
            return
    yield Finding(what=own[0], why=f"md5 {own[1]} was written by no run here")


def _signature(case: Case) -> Iterator[Finding]:
    is_there = (case.folder / SIGNATURE).exists()
    if case.trust is None:
        if case.bundle.signed and not is_there:
            yield Finding(what=SIGNATURE, why="is missing, but the bundle says that it was signed")
        elif is_there:
            case.notes.append("the signature was not checked: say --public-key or --certificates")
        return
    if not is_there:
        yield Finding(what=SIGNATURE, why="is missing: the bundle is unsigned")
        return
    wrong = signature_failure(case.folder, case.trust)
    if wrong:
        yield Finding(what=SIGNATURE, why=wrong)


CHECKS: dict[str, Callable[[Case], Iterator[Finding]]] = {
    "files": _files,
    "records": _records,
    "provenance": _provenance,
    "contents": _contents,
    "locks": _locks,
    "chain": _chain,
    "signature": _signature,
}
"""What is checked of a bundle."""


def _run(case: Case, part: Part) -> Run | None:
    if part.has_record:
        record = case.records.get(part.folder)
        return run_of_record(record, "") if record else None
    path = case.folder / f"locks/{part.lock}.lock"
    return _locked(path.read_bytes(), part) if path.is_file() else None


def _locked(body: bytes, part: Part) -> Run | None:
    """Return the run that a dvc.lock tells of, with the outputs of a part."""
    for key, text in split_entries(body).items():
        found = parse_entry(text)
        if found is not None and found[0] == part.cell:
            run = run_of_entry(*found, key)
            return run if dict(run.outs) == part.outs else None
    return None


def read_json_or_none(path: Path) -> Any:
    """Read a document; None for one that is missing or broken."""
    try:
        return read_json(path)
    except (UserError, UnicodeDecodeError):
        return None


def lines(report: BundleReport) -> Iterator[str]:
    """Yield the failures, then the notes, then the verdict."""
    yield f"{report.cell}  {report.path}  md5 {report.md5}"
    yield from (f"FAILED {one.what}: {one.why}" for one in report.failures)
    yield from report.notes
    if report.signed is None:
        yield "UNSIGNED: digests show accidents, not forgery"
    size = f"{report.files} files of {report.runs} runs agree"
    told = " and the signature holds" if report.signature_checked else ""
    yield f"{len(report.failures)} failures" if report.failures else f"verified: {size}{told}"
