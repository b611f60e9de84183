"""What lineage shows of a run record: names, params, metrics, edges. Pure data; no tracking server."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.hashing import file_md5
from flows.records import Record

MAX_PARAM_CHARS = 500
"""MLflow refuses longer param values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A data file or folder that a stage read or wrote."""

    path: str
    md5: str
    """As DVC knows it; `.dir` at the end for a folder."""
    context: str
    """`input` or `output`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRun:
    """One finished stage cell, as it will stand in MLflow."""

    identity: str
    cell: str
    pipeline_run: str
    start_ms: int
    end_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    edges: tuple[Edge, ...]
    steps: tuple[Mapping[str, float], ...]
    """Step curves: each row has `step` and metric values."""


def stage_run(record: Record, root: Path) -> StageRun:
    """Turn a run record into what MLflow will hold."""
    return StageRun(
        identity=record.identity,
        cell=record.cell,
        pipeline_run=record.pipeline_run or "by-hand",
        start_ms=int(record.started * 1000),
        end_ms=int(record.ended * 1000),
        tags=_tags(record),
        params=dict(_flatten(record.params)),
        metrics={key: value for key, value in record.metrics.items() if _is_number(value)},
        edges=tuple(_edges(record)),
        steps=_steps(record, root),
    )


def _tags(record: Record) -> dict[str, str]:
    edges = {f"in.{md5}": path for path, md5 in record.deps.items()}
    edges |= {f"out.{md5}": path for path, md5 in record.outs.items()}
    axes = {f"afm.{axis}": value for axis, value in record.axes.items()}
    return {
        "afm.identity": record.identity,
        "afm.stage": record.stage,
        "afm.cell": record.cell,
        "afm.executor": record.executor,
        "afm.constraints": record.constraints,
        "afm.git_dirty": str(record.git_dirty).lower(),
        "mlflow.source.git.commit": record.git_commit or "",
        **axes,
        **edges,
    }


def _edges(record: Record) -> Iterator[Edge]:
    for path, md5 in record.deps.items():
        yield Edge(path=path, md5=md5, context="input")
    for path, md5 in record.outs.items():
        yield Edge(path=path, md5=md5, context="output")


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value, sort_keys=True)[:MAX_PARAM_CHARS]


def _steps(record: Record, root: Path) -> tuple[Mapping[str, float], ...]:
    """Read the step curve from the stage's own out; it is the same file whoever asks."""
    for path, md5 in record.outs.items():
        if path.endswith("steps.jsonl"):
            return tuple(_read_steps(_content(root, path, md5)))
    return ()


def _content(root: Path, path: str, md5: str) -> Path | None:
    """Find a file's content by hash: DVC's cache first, then the workspace if it still holds that content."""
    cached = root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    if cached.exists():
        return cached
    here = root / path
    is_same = here.exists() and file_md5(here) == md5
    return here if is_same else None


def _read_steps(path: Path | None) -> Iterator[Mapping[str, float]]:
    if path is None:
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield {key: value for key, value in row.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
