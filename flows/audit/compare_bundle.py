"""`afm audit verify MODEL --bundle`: is the past of this checkout still the one that was exported?

Who rewrites a ledger, its record, dvc.lock and the history of git together leaves no trace in the checkout; a bundle
that was signed before, and kept elsewhere, still tells.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import ValidationError

from flows.audit.bundle import RECORD, Bundle, Part
from flows.audit.evidence import Finding
from flows.audit.formats import file_name
from flows.audit.graph import Model
from flows.audit.render import indent, listed
from flows.audit.runs import Run, run_of_record
from flows.audit.verify import NOTE, Report
from flows.audit.verify import lines as report_lines
from flows.audit.verify_bundle import BundleReport
from flows.audit.verify_bundle import lines as bundle_lines
from flows.records import Record

Place = tuple[str, str]
"""Cell, and identity; of a run without a record, the md5 of its entry in dvc.lock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Both:
    """What was found of a bundle and of the checkout, the differences between them among the latter."""

    bundle: BundleReport
    workspace: Report


def both_lines(both: Both) -> Iterator[str]:
    """Yield what was found of either."""
    yield f"bundle {both.bundle.folder}"
    yield from indent(bundle_lines(both.bundle))
    yield "this checkout, compared with the bundle"
    yield from indent(report_lines(both.workspace))


def differences(
    model: Model, runs: Sequence[Run], bundle: Bundle, folder: Path
) -> Iterator[Finding]:
    """Yield what a checkout says otherwise than a bundle.

    Args:
        model: the model, as the checkout knows it.
        runs: its chain and judgements there.
        bundle: the index of the bundle.
        folder: where it lies.
    """
    if (model.path, model.md5) != (bundle.path, bundle.md5):
        why = f"md5 {model.md5} here, but the bundle is of {bundle.path} with md5 {bundle.md5}"
        yield Finding(what=model.path, why=why)
    ours = {(run.cell, run.identity or run.entry): run for run in runs}
    theirs = {(part.cell, file_name(part.folder)): part for part in bundle.runs}
    for place, part in theirs.items():
        other = ours.get(place) or _stand_in(place, ours, theirs)
        if other is None:
            yield Finding(what=part.cell, why="is in the bundle, but rests under the model no more")
        else:
            yield from _differing(other, part, folder)
    yield from _unknown(ours, theirs)


def _stand_in(place: Place, ours: Mapping[Place, Run], theirs: Mapping[Place, Part]) -> Run | None:
    """Return the run that took another's place: the same cell, which the bundle does not know."""
    found = [
        run for (cell, key), run in ours.items() if cell == place[0] and (cell, key) not in theirs
    ]
    return found[0] if found else None


def _differing(run: Run, part: Part, folder: Path) -> Iterator[Finding]:
    for label, here, there in (("wrote", run.outs, part.outs), ("read", run.deps, part.deps)):
        for path in sorted({*here, *there}):
            if here.get(path) != there.get(path):
                why = f"{run.cell} {label} md5 {here.get(path)}, but the bundle says {there.get(path)}"
                yield Finding(what=path, why=why)
    if part.has_record and run.origin == "lock":
        yield Finding(what=run.cell, why="the bundle has its record, which is gone here")
    elif part.has_record and (told := _other(run, folder / part.folder / RECORD)):
        yield Finding(what=f"record of {run.cell}", why=f"is not the one in the bundle: {told}")


def _other(run: Run, place: Path) -> str | None:
    """Say in what a record differs from the bundle's; None where it has the same bytes."""
    body = place.read_bytes() if place.is_file() else b""
    if hashlib.md5(body).hexdigest() == run.content:
        return None
    try:
        theirs = run_of_record(Record.model_validate_json(body), "")
    except ValidationError:
        return "that cannot be read"
    names = [
        one.name for one in fields(run) if one.name not in ("entry", "content", "outs", "deps")
    ]
    changed = [name for name in names if getattr(run, name) != getattr(theirs, name)]
    return listed(changed) or "in what only a record tells"


def _unknown(ours: Mapping[Place, Run], theirs: Mapping[Place, Part]) -> Iterator[Finding]:
    """Name the runs here that the bundle does not know; a model may be evaluated again at any time."""
    cells = {cell for cell, _ in theirs}
    for (cell, key), run in ours.items():
        if (cell, key) in theirs:
            continue
        if run.stage in ("evaluate", "score"):
            yield Finding(what=cell, why=f"{NOTE}was measured after the bundle was made")
        elif cell not in cells:
            yield Finding(what=cell, why="is not in the bundle")
