"""One stage run as an audit sees it, from a run record or, where there is none, from an entry of dvc.lock."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from flows.records import Record
from stages._closure import is_code

AXES = ("agent", "scale", "variant", "endpoint")
"""Flags of a stage command that name its cell."""
GATE = "gate/rl_is_champion"
"""Metric of score: 1 where the RL model passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a chain needs to know of a stage run; the rest is in its record."""

    origin: Literal["record", "lock"]
    entry: str
    """md5 of the record file's bytes, or of the text of the entry in dvc.lock."""
    content: str
    """md5 of the record file, or the git blob of the dvc.lock: where every answer comes from."""
    identity: str | None
    """None where only dvc.lock tells of it."""
    stage: str
    cell: str
    axes: Mapping[str, str]
    deps: Mapping[str, str]
    """md5 by path; data alone."""
    outs: Mapping[str, str]
    """md5 by path."""
    code: Mapping[str, str]
    """md5 by path."""
    started: float
    """[s] since 1970; of an entry of dvc.lock, its first commit; 0 where unknown."""
    ended: float
    git_commit: str | None
    """Commit from which it was started; of an entry of dvc.lock, the first that holds the entry."""
    git_dirty: bool
    pipeline_run: str | None
    rl_passed: bool | None
    """What the gate of a score decided; None for all else."""

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What makes two sources speak of one run: the cell and what it wrote."""
        return self.cell, frozenset(self.outs.items())

    def name(self) -> str:
        """Return the registered model that its stage trains for."""
        return f"afm-{self.axes.get('agent', '')}-{self.axes.get('scale', '')}"


def run_of_record(record: Record, content: str) -> Run:
    """Keep what a chain needs of a record."""
    gate = record.metrics.get(GATE)
    return Run(
        origin="record",
        entry=content,
        content=content,
        identity=record.identity,
        stage=record.stage,
        cell=record.cell,
        axes=record.axes,
        deps=record.deps,
        outs=record.outs,
        code=record.code,
        started=record.started,
        ended=record.ended,
        git_commit=record.git_commit,
        git_dirty=record.git_dirty,
        pipeline_run=record.pipeline_run,
        rl_passed=None if gate is None else bool(gate),
    )


def run_of_entry(cell: str, entry: Mapping[str, Any], key: str) -> Run:
    """Read a run from an entry of dvc.lock; where and when it was, the history of git tells."""
    words = str(entry["cmd"]).split()
    axes = {axis: words[words.index(f"--{axis}") + 1] for axis in AXES if f"--{axis}" in words}
    deps = {item["path"]: str(item.get("md5", "")) for item in entry.get("deps", ())}
    return Run(
        origin="lock",
        entry=key,
        content="",
        identity=None,
        stage=words[1] if words[0] == "bin/submit" else cell.partition("@")[0],
        cell=cell,
        axes=axes,
        deps={path: md5 for path, md5 in deps.items() if not is_code(path)},
        outs={item["path"]: str(item.get("md5", "")) for item in entry.get("outs", ())},
        code={path: md5 for path, md5 in deps.items() if is_code(path)},
        started=0.0,
        ended=0.0,
        git_commit=None,
        git_dirty=False,
        pipeline_run=None,
        rl_passed=None,
    )


def placed(run: Run, blob: str, commit: str | None, time: float) -> Run:
    """Return a run of dvc.lock with the version that first held it."""
    return replace(run, content=blob, git_commit=commit, started=time, ended=time)


def to_json(run: Run) -> str:
    """Serialise a run without its code, which the index keeps in a table of its own."""
    return json.dumps(asdict(run) | {"code": {}})


def from_json(body: str) -> Run:
    """Read what `to_json` wrote."""
    return Run(**json.loads(body))
