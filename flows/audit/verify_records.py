"""Does a run's record agree with itself, with its twin beside the result, and with dvc.lock?"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flows.audit.details import flatten, read_record
from flows.audit.evidence import Entry, Evidence, Finding, as_written
from flows.audit.runs import Run
from flows.comparison import SAMPLED
from flows.identity import Ingredients
from flows.records import Record, digest_of
from flows.store import RECORD

NOTE = "note: "


def record_of(evidence: Evidence, run: Run) -> Record | None:
    """Return a run's record; None where only dvc.lock tells of it."""
    if run.origin != "record":
        return None
    return read_record(evidence.records[run.content], run.content)


def check_record(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check that a record is as it was written, and that its identity follows from what it says."""
    record = record_of(evidence, run)
    if record is None:
        yield Finding(
            what=run.cell,
            why="no run record: dvc.lock alone tells how it came about, which proves little",
        )
        return
    path = evidence.records[run.content]
    what, body = evidence.name(path), path.read_bytes()
    if not record.digest:
        yield Finding(
            what=what, why=f"{NOTE}has no digest, so only what dvc.lock repeats can be checked"
        )
    elif record.digest != digest_of(json.loads(body)):
        yield Finding(what=what, why="was edited: its digest is another")
    if body != as_written(json.loads(body)):
        yield Finding(what=what, why="was edited: it is not as a stage's end writes it")
    if path.stem not in (record.identity, "record"):
        yield Finding(what=what, why=f"is the record of {record.identity}")
    twin = evidence.workspace.results / record.identity / RECORD
    if twin.exists() and twin.read_bytes() != body:
        yield Finding(what=evidence.name(twin), why=f"and {what} differ")


def check_locks(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check that dvc.lock, of the workspace or of a commit, has the run as its record has it, and none otherwise."""
    own = [entry for entry in evidence.entries if entry.cell == run.cell]
    agreeing = [entry for entry in own if dict(entry.run.outs) == dict(run.outs)]
    record = record_of(evidence, run)
    if not agreeing:
        yield Finding(
            what=run.cell,
            why="no dvc.lock, of the workspace or of a commit, has these outputs; commit dvc.lock after a run",
        )
    for entry in own:
        if record is not None and entry not in agreeing and _same_inputs(evidence, entry, record):
            yield from _contradiction(entry, run)
    if record is not None and agreeing:
        # A later run may have made the same outputs from other inputs.
        best = next(
            (e for e in agreeing if not any(differences(e.run, e.body, record))), agreeing[0]
        )
        what = f"{best.where}: {run.cell}"
        yield from (Finding(what=what, why=why) for why in differences(best.run, best.body, record))
        yield from (Finding(what=what, why=why) for why in identity_failures(best.body, record))


def _same_inputs(evidence: Evidence, entry: Entry, record: Record) -> bool:
    """Tell whether an entry was made from all that a record was made from: then its outputs should be the same."""
    return (
        dict(entry.run.deps) == record.deps
        and dict(entry.run.code) == record.code
        and all(
            flatten(value) == flatten(_cut(record.params, key))
            for key, value in _params(entry.body).items()
        )
        and record.constraints in evidence.pins(entry.version.commit, record.environment)
    )


def _contradiction(entry: Entry, run: Run) -> Iterator[Finding]:
    """The same inputs gave other outputs: an edit, unless a model server sampled them."""
    if entry.version.commit is not None and run.cell.partition("@")[0] in SAMPLED:
        return
    for path, md5 in run.outs.items():
        found = entry.run.outs.get(path)
        if found != md5:
            yield Finding(
                what=f"{entry.where}: {run.cell}",
                why=f"{path} is {found}, but the record of the same inputs says {md5}: an edit, or a rerun that "
                "did not repeat itself",
            )


def differences(run: Run, body: Mapping[str, Any], record: Record) -> Iterator[str]:
    """Yield what an entry of dvc.lock, `body`, and the run read from it tell otherwise than a record."""
    for name, ours, theirs in (
        ("dependency", record.deps, run.deps),
        ("code", record.code, run.code),
    ):
        for path in sorted({*ours, *theirs}):
            if ours.get(path) != theirs.get(path):
                yield f"{name} {path} is {theirs.get(path)}, but the record says {ours.get(path)}"
    for key, value in _params(body).items():
        if flatten(value) != flatten(_cut(record.params, key)):
            yield f"params {key} differ from the record's"


def identity_failures(body: Mapping[str, Any], record: Record) -> Iterator[str]:
    """Compute the identity anew from the record: it hashes everything that can change the result."""
    words = str(body["cmd"]).split()
    flags = dict(zip(words[2::2], words[3::2], strict=False))
    paths = {
        flag[2:].replace("-", "_"): path
        for flag, path in flags.items()
        if not flag.startswith("--out-") and flag[2:] not in record.axes
    }
    if not set(paths.values()) <= record.deps.keys():
        yield "its command reads what the record does not name"
        return
    parts = Ingredients(
        stage=record.stage,
        axes=record.axes,
        deps={name: record.deps[path] for name, path in paths.items()},
        code=record.code,
        params={key: _cut(record.params, key) for key in sorted(_params(body))},
        constraints=record.constraints,
    )
    if parts.identity != record.identity:
        yield f"the record's inputs, code and params give identity {parts.identity}, not {record.identity}"


def _params(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for values in body.get("params", {}).values() for key, value in values.items()
    }


def _cut(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
