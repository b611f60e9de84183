"""`afm audit verify --bundle`: does a bundle agree with itself, with its signature, with weights? Needs no checkout."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.audit.bundle import MODEL, PROVENANCE, SIGNATURE, read_bundle
from flows.audit.bundle_checks import CHECKS, Case
from flows.audit.evidence import Finding
from flows.audit.export_provenance import digests, files_in
from flows.audit.export_sign import Trust, look
from flows.hashing import listing_md5, walk


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleReport:
    """What the check of a bundle found."""

    folder: str
    cell: str
    path: str
    md5: str
    runs: int
    files: int
    signed: str | None
    """`key`, `certificate`, or None: nobody signed it."""
    signed_by: str | None
    """Whose signature holds; None where none does, or none was looked at."""
    weights: str | None
    """Folder of weights that were hashed; None for none."""
    failures: tuple[Finding, ...]
    notes: tuple[str, ...]


def verify_bundle(folder: Path, trust: Trust | None, weights: Path | None = None) -> BundleReport:
    """Check every digest, what the documents say of each other, and the signature.

    Args:
        folder: the bundle.
        trust: whose signature it should be; None leaves it unchecked, which the report says.
        weights: a folder that should hold the model; by default the bundle's own, if it has the model.

    Raises:
        UserError: the folder is no bundle, or a key or the weights cannot be read.
    """
    case = Case(folder=folder, bundle=read_bundle(folder))
    found = [one for check in CHECKS.values() for one in check(case)]
    place = weights or (folder / MODEL if (folder / MODEL).is_dir() else None)
    found += _weights(case, place) if place else []
    if place is None:
        case.notes.append(
            "no weights were looked at: their digests are in the bundle; --weights checks them"
        )
    by, signature = _signature(case, trust)
    bundle = case.bundle
    return BundleReport(
        folder=str(folder),
        cell=bundle.cell,
        path=bundle.path,
        md5=bundle.md5,
        runs=len(bundle.runs),
        files=len(bundle.files),
        signed=bundle.signed,
        signed_by=by,
        weights=str(place) if place else None,
        failures=tuple(dict.fromkeys([*found, *signature])),
        notes=tuple(case.notes),
    )


def _weights(case: Case, place: Path) -> Iterator[Finding]:
    """Check that a folder holds the model: no file more or less, each with the digests in the provenance."""
    if not place.is_dir():
        raise UserError(f"--weights {place}: no such folder")
    found = {at.relative_to(place).as_posix(): digests(at) for at in walk(place)}
    if listing_md5({name: md5 for name, (md5, _) in found.items()}) != case.bundle.md5:
        yield Finding(what=str(place), why=f"is not the model with md5 {case.bundle.md5}")
    expected = _told(case)
    for name in sorted({*found, *expected}):
        what, (md5, sha256) = str(place / name), found.get(name, ("", ""))
        told = expected.get(name, {})
        if not told:
            yield Finding(what=what, why="is not part of the model")
        elif not md5:
            yield Finding(what=what, why="is missing")
        elif (md5, sha256) != (told.get("md5"), told.get("sha256")):
            yield Finding(what=what, why="its digests are not those in the provenance")


def _told(case: Case) -> dict[str, Mapping[str, str]]:
    """Return the digests of each file of the model as the statement of its run has them."""
    maker = next(
        (
            one
            for one in case.bundle.runs
            if case.bundle.path in one.outs and one.cell == case.bundle.cell
        ),
        None,
    )
    told: Any = case.document(f"{maker.folder}/{PROVENANCE}") if maker else None
    try:
        return files_in(told, case.bundle.path)
    except (LookupError, TypeError, AttributeError):
        return {}  # the check of the provenance names what is wrong with it


def _signature(case: Case, trust: Trust | None) -> tuple[str | None, list[Finding]]:
    """Return whose signature holds, and what is wrong with it."""
    is_there = (case.folder / SIGNATURE).exists()
    signed = case.bundle.signed
    if trust is None:
        if signed and not is_there:
            why = f"is missing, but the bundle says that it was signed with a {signed}"
            return None, [Finding(what=SIGNATURE, why=why)]
        return None, []
    if not is_there:
        why = "is missing: " + ("somebody took it away" if signed else "the bundle is unsigned")
        return None, [Finding(what=SIGNATURE, why=why)]
    seal = look(case.folder, trust)
    return seal.by, [Finding(what=SIGNATURE, why=seal.failure)] if seal.failure else []


def lines(report: BundleReport) -> Iterator[str]:
    """Yield the failures, then the notes, then the verdict."""
    yield f"{report.cell}  {report.path}  md5 {report.md5}"
    yield from (f"FAILED {one.what}: {one.why}" for one in report.failures)
    yield from report.notes
    if report.failures:
        yield f"{len(report.failures)} failures"
        return
    size = f"{report.files} files of {report.runs} runs agree"
    if report.signed_by:
        yield f"verified: {size}; signed by {report.signed_by}"
    elif report.signed is None:
        yield f"{size}; UNSIGNED: digests show accidents, not forgery"
    else:
        yield f"{size}; signature NOT checked: name whom you trust with --public-key or --root"
