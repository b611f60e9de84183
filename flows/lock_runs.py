"""Stage runs that no record tells of any more, as far as versions of dvc.lock in git and the workspace know them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.audit.history import committed_locks, parse_entry, read_locks, workspace_lock
from flows.audit.runs import Run, run_of_entry
from flows.lineage_view import StageRun, edges, flatten
from flows.records import Record

ORIGIN = "afm.origin"
"""Tag of a run that no record tells of."""
PIPELINE_RUN = "dvc.lock"
"""Parent of all of them: which run of the flow it was, nobody knows."""


def lock_runs(root: Path, records: Sequence[Record]) -> list[StageRun]:
    """Return a run for each entry that a dvc.lock has held and no record covers, oldest first.

    It has no metrics, times or environment: those stand in records alone.
    """
    known = {(record.cell, frozenset(record.outs.items())) for record in records}
    found: dict[str, StageRun] = {}
    for commit, time, key, text in _entries(root):
        parsed = parse_entry(text)
        if parsed is None or key in found:
            continue
        run = run_of_entry(*parsed, key)
        if run.key not in known:
            known.add(run.key)
            found[key] = _stage_run(run, parsed[1], commit, time)
    return list(found.values())


def _entries(root: Path) -> Iterator[tuple[str | None, float, str, str]]:
    """Yield commit, time, md5 and text of every entry, from the oldest version on."""
    own = workspace_lock(root)
    versions = [*reversed(committed_locks(root)), *([own] if own else [])]
    read = dict(read_locks(root, [version.blob for version in versions]))
    for version in versions:
        for key, text in read.get(version.blob, {}).items():
            yield version.commit, version.time, key, text


def _stage_run(run: Run, entry: Mapping[str, Any], commit: str | None, time: float) -> StageRun:
    identity = f"lock-{run.entry}"
    params = {
        key: value for part in entry.get("params", {}).values() for key, value in part.items()
    }
    tags = {
        "afm.identity": identity,
        "afm.stage": run.stage,
        "afm.cell": run.cell,
        ORIGIN: "dvc.lock",
        "mlflow.source.git.commit": commit or "",
        **{f"afm.{axis}": value for axis, value in run.axes.items()},
        **{f"in.{md5}": path for path, md5 in run.deps.items()},
        **{f"out.{md5}": path for path, md5 in run.outs.items()},
    }
    return StageRun(
        identity=identity,
        cell=run.cell,
        pipeline_run=PIPELINE_RUN,
        start_ms=int(time * 1000),
        end_ms=int(time * 1000),
        tags=tags,
        params=dict(flatten(params)),
        metrics={},
        edges=tuple(edges(run.deps, run.outs)),
        steps=(),
        lost_steps=None,
    )
