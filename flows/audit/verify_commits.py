"""Does the commit in a run's record hold the code, the params and the constraints that the record names?"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from afm.plain_yaml import parse_yaml
from flows.audit.details import flatten
from flows.audit.evidence import Evidence, Finding
from flows.audit.runs import Run
from flows.audit.verify_records import record_of
from flows.records import Record

NOTE = "note: "
PARAMS = "params.yaml"
TRACKED = ("dvc.yaml", PARAMS)
"""Files of the project beside a run's code that say what it does."""


def check_commits(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check a run against its commit; of a dirty tree, what differs is only told."""
    record = record_of(evidence, run)
    if record is None:
        return
    commit = record.git_commit
    if commit is None:
        yield Finding(what=run.cell, why=f"{NOTE}was run outside git, so no commit holds its code")
        return
    files = evidence.blobs.files(commit)
    if files is None:
        yield Finding(
            what=run.cell,
            why=f"its commit {commit} is not in this repository: fetch the branch, or it was rebased and dropped",
        )
        return
    body = evidence.blobs.read(files[PARAMS]) if PARAMS in files else b""
    yield from _workspace(evidence, run, record, files)
    wrong = [*_code(evidence, record, files), *_params(body, record)]
    if not wrong:
        return
    told = f"{', '.join(wrong[:5])}{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}"
    if record.git_dirty:
        why = f"{NOTE}was run with changes that commit {commit} does not hold: {told}"
        yield Finding(what=run.cell, why=why)
    else:
        yield Finding(what=run.cell, why=f"commit {commit} has other content: {told}")


def _workspace(
    evidence: Evidence, run: Run, record: Record, files: Mapping[str, str]
) -> Iterator[Finding]:
    """Tell what the workspace has otherwise by now; what made the model, the commit holds."""
    changed = [path for path, md5 in record.code.items() if _md5(evidence, path) != md5]
    changed += [path for path in TRACKED if path in files and _differs(evidence, path, files[path])]
    if record.constraints not in evidence.pins(None, record.environment):
        changed.append(f"constraints/{record.environment}.txt")
    for path in changed:
        yield Finding(what=path, why=f"{NOTE}has changed in the workspace since {run.cell} ran")
    place = evidence.root / PARAMS
    for what in _params(place.read_bytes() if place.is_file() else b"", record):
        yield Finding(what=what, why=f"{NOTE}is another in the workspace since {run.cell} ran")


def _md5(evidence: Evidence, path: str) -> str | None:
    place = evidence.root / path
    return evidence.md5(place) if place.is_file() else None


def _differs(evidence: Evidence, path: str, blob: str) -> bool:
    return _md5(evidence, path) != evidence.blobs.md5(blob)


def _code(evidence: Evidence, record: Record, files: Mapping[str, str]) -> Iterator[str]:
    """Name the code files, and the constraints file, that the commit has otherwise."""
    evidence.blobs.load([files[path] for path in record.code if path in files])
    for path, md5 in record.code.items():
        if path not in files or evidence.blobs.md5(files[path]) != md5:
            yield path
    if record.constraints not in evidence.pins(record.git_commit, record.environment):
        yield f"constraints/{record.environment}.txt"


def _params(body: bytes, record: Record) -> Iterator[str]:
    """Name the params of a run that a params.yaml has otherwise, or that it has not."""
    try:
        tree: Any = parse_yaml(body) or {}
    except yaml.YAMLError:
        yield f"{PARAMS}: no YAML"
        return
    there = flatten(tree)
    for key, value in flatten(record.params).items():
        if key not in there or there[key] != value:
            yield f"{PARAMS}: {key}"
