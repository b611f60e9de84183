"""What lineage shows of a run record: names, params, metrics, edges. Pure data; no tracking server."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.attempts import Attempt
from flows.hashing import file_md5
from flows.records import Record
from flows.workspace import home_of

MAX_PARAM_CHARS = 500
"""MLflow refuses longer param values."""
CURVE = "steps/"
"""Begins the name of a metric that has a value per step."""
CURVE_STAGES = frozenset({"sft", "dapo"})
"""Stages that keep the curve of their steps among their outputs."""
MODEL_STAGES = {"sft": "sft", "dapo": "rl"}
"""Stages whose model is registered, and the alias of its newest version."""


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
    lost_steps: str | None
    """Path of a step curve whose content is nowhere any more."""


def stage_run(record: Record, root: Path) -> StageRun:
    """Turn a run record into what MLflow will hold."""
    curve = next((path for path in record.outs if path.endswith("steps.jsonl")), None)
    content = _content(root, record, curve) if curve else None
    return StageRun(
        identity=record.identity,
        cell=record.cell,
        pipeline_run=pipeline_name(record),
        start_ms=int(record.started * 1000),
        end_ms=int(record.ended * 1000),
        tags=_tags(record),
        params=dict(flatten(record.params)),
        metrics={**numbers_of(record.metrics), **_spent(record)},
        edges=tuple(edges(record.deps, record.outs)),
        steps=tuple(_read_steps(content)) if content else (),
        lost_steps=None if content else curve,
    )


def pipeline_name(made: Record | Attempt) -> str:
    """Return what the parent run of a stage run is tagged with."""
    return made.pipeline_run or "by-hand"


def gate_choice(score: Record) -> str | None:
    """Return the variant that a score's gate chose, `rl` or `sft`; None for what is no score or had no gate."""
    if score.stage != "score" or "gate/rl_is_champion" not in score.metrics:
        return None
    return "rl" if score.metrics["gate/rl_is_champion"] else "sft"


def chosen_model(score: Record, variant: str, records: Sequence[Record]) -> str | None:
    """Return the md5 of the model that a score judged: what its evaluation read, and a training stage wrote.

    None where a record on that way is missing. The model's newest version may be another, not yet judged.
    """
    judged = {*score.deps.values()}
    trained = [record for record in records if record.stage in MODEL_STAGES]
    models = {md5 for record in trained for md5 in record.outs.values()}
    for record in reversed(records):
        is_judged = record.stage == "evaluate" and judged & {*record.outs.values()}
        if is_judged and record.axes["variant"] == variant:
            return next((md5 for md5 in record.deps.values() if md5 in models), None)
    return None


def ancestry(models: Iterable[str], runs: Iterable[Mapping[str, str]]) -> frozenset[str]:
    """Return the md5s of models and of everything that led to them, what was made beside it too.

    Args:
        models: md5s.
        runs: the tags of each stage run, as `_tags` makes them.
    """
    edges = [
        tuple(
            {tag.partition(".")[2] for tag in tags if tag.startswith(kind)}
            for kind in ("in.", "out.")
        )
        for tags in runs
    ]
    reached = frontier = frozenset(models)
    while frontier:
        near = [ins | outs for ins, outs in edges if outs & frontier]
        frontier = frozenset().union(*near) - reached
        reached |= frontier
    return reached


def _tags(record: Record) -> dict[str, str]:
    edges = {f"in.{md5}": path for path, md5 in record.deps.items()}
    edges |= {f"out.{md5}": path for path, md5 in record.outs.items()}
    axes = {f"afm.{axis}": value for axis, value in record.axes.items()}
    return {
        "afm.identity": record.identity,
        "afm.stage": record.stage,
        "afm.cell": record.cell,
        "afm.executor": record.executor,
        "afm.host": record.host,
        "afm.environment": record.environment,
        "afm.constraints": record.constraints,
        "afm.python": record.python,
        "afm.git_dirty": str(record.git_dirty).lower(),
        "mlflow.source.git.commit": record.git_commit or "",
        **({"afm.job": record.job} if record.job else {}),
        **({"afm.images": " ".join(record.images)} if record.images else {}),
        **({"afm.flow_run": record.pipeline_run} if record.pipeline_run else {}),
        **_endpoint_tags(record),
        **axes,
        **edges,
    }


def _endpoint_tags(record: Record) -> dict[str, str]:
    """Name the models behind endpoints as their servers did; several uses of one endpoint are one tag each name."""
    tags = {}
    for used in record.facts.get("endpoints", ()):
        tags[f"afm.endpoint.{used['name']}"] = str(used["model"])
        if used.get("root"):
            tags[f"afm.endpoint.{used['name']}.root"] = str(used["root"])
    return tags


def _spent(record: Record) -> dict[str, float]:
    """Return time, GPUs, tokens and cost of a run, as far as they were counted."""
    used = record.facts.get("endpoints", ())
    tokens = {
        f"run/{key}": sum(one[key] for one in used)
        for key in ("calls", "prompt_tokens", "completion_tokens")
        if used
    }
    counted = {
        "run/wall_s": record.wall_s,
        "run/gpu_s": record.gpu_s,
        "run/cost": record.cost,
        "run/out_bytes": record.out_bytes,
    }
    return tokens | {key: value for key, value in counted.items() if value is not None}


def edges(deps: Mapping[str, str], outs: Mapping[str, str]) -> Iterator[Edge]:
    """Yield what was read and what was written, given md5 by path."""
    for path, md5 in deps.items():
        yield Edge(path=path, md5=md5, context="input")
    for path, md5 in outs.items():
        yield Edge(path=path, md5=md5, context="output")


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each leaf of a tree as JSON under its dotted key, as long as MLflow takes."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value, sort_keys=True)[:MAX_PARAM_CHARS]


def _content(root: Path, record: Record, path: str) -> Path | None:
    """Find an output's content by hash: in DVC's cache, the result store, or the workspace.

    A sync may run between the record, written when a result is sealed, and DVC's commit of it to the cache.
    """
    md5, name = record.outs[path], Path(path).name
    cached = root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    if cached.exists():
        return cached
    others = [*(home_of(root) / ".results" / record.identity).glob(f"*/{name}"), root / path]
    return next((at for at in others if at.exists() and file_md5(at) == md5), None)


def _read_steps(path: Path) -> Iterator[Mapping[str, float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield numbers_of(json.loads(line))


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a JSON object is a number; what was not measured is null there."""
    return {key: value for key, value in row.items() if type(value) in (int, float)}
