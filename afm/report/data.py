"""Reading what the other stages wrote into the tables that the page shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import iter_rows, read_json
from afm.screening import PassRate
from afm.types import LedgerRow, Trajectory

Metrics = Mapping[str, float | int | None]
"""A metrics.json: flat keys with slashes."""

VARIANTS = ("base", "sft", "rl", "teacher")
"""Rows of the result table, in the order of the pipeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folders:
    """The output folder of each stage."""

    prepare: Path
    rollout: Path
    filter: Path
    screen: Path
    select: Path
    sft: Path
    dapo: Path
    evaluate: Path
    score: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentData:
    """What is measured once per agent."""

    agent: str
    prepare: Metrics
    rollout: Metrics
    filter: Metrics
    select: Metrics
    pass_rates: tuple[float, ...]
    """One per screened query, in [0, 1]."""
    hops: tuple[int, ...] = ()
    """One per teacher trajectory, as the filter counted them."""
    tokens: tuple[int, ...] = ()
    """One per teacher trajectory: what the teacher and the tools wrote [tokens]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellData:
    """What is measured once per agent and scale."""

    agent: str
    scale: str
    score: Metrics
    gate: Mapping[str, Any]
    sft: Metrics
    dapo: Metrics
    sft_steps: tuple[Mapping[str, Any], ...]
    dapo_steps: tuple[Mapping[str, Any], ...]
    pairs: tuple["TrajectoryPair", ...]

    @property
    def cell(self) -> str:
        """Name of the cell, for instance `mhqa-tiny`."""
        return f"{self.agent}-{self.scale}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryPair:
    """The greedy rollouts of the SFT and the RL model on one held-out query."""

    question: str
    answers: tuple[str, ...]
    sft: Trajectory
    rl: Trajectory


def read_agent(folders: Folders, agent: str) -> AgentData:
    """Read the per-agent metrics.

    Raises:
        UserError: a stage's output is missing or malformed.
    """
    rates = iter_rows(folders.screen / agent / "pass_rates.jsonl", PassRate)
    ledger = iter_rows(folders.filter / agent / "ledger.jsonl", LedgerRow)
    runs = iter_rows(folders.rollout / agent / "trajectories.jsonl", Trajectory)
    return AgentData(
        agent=agent,
        prepare=read_json(folders.prepare / agent / "metrics.json"),
        rollout=read_json(folders.rollout / agent / "metrics.json"),
        filter=read_json(folders.filter / agent / "metrics.json"),
        select=read_json(folders.select / agent / "metrics.json"),
        pass_rates=tuple(rate.pass_rate for rate in rates),
        hops=tuple(int(row.values["hops"] or 0) for row in ledger),
        tokens=tuple(run.usage.policy_tokens + run.usage.observation_tokens for run in runs),
    )


def read_cell(folders: Folders, agent: str, scale: str, num_pairs: int) -> CellData:
    """Read the metrics, curves and sample trajectories of one cell.

    Raises:
        UserError: a stage's output is missing or malformed.
    """
    cell = f"{agent}-{scale}"
    return CellData(
        agent=agent,
        scale=scale,
        score=read_json(folders.score / cell / "metrics.json"),
        gate=read_json(folders.score / cell / "gate.json"),
        sft=read_json(folders.sft / cell / "metrics.json"),
        dapo=read_json(folders.dapo / cell / "metrics.json"),
        sft_steps=read_steps(folders.sft / cell / "steps.jsonl"),
        dapo_steps=read_steps(folders.dapo / cell / "steps.jsonl"),
        pairs=_read_pairs(folders.evaluate, cell, num_pairs),
    )


def read_steps(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read a trainer's steps.jsonl: one flat row per step."""
    import json

    if not path.exists():
        raise UserError(f"no such file: {path}")
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def _read_pairs(folder: Path, cell: str, num_pairs: int) -> tuple[TrajectoryPair, ...]:
    sft = _greedy(folder / f"{cell}-sft" / "records.jsonl", "sft")
    rl = _greedy(folder / f"{cell}-rl" / "records.jsonl", "rl")
    shared = [query for query in sft if query in rl]
    stride = max(1, len(shared) // max(1, num_pairs))
    return tuple(
        TrajectoryPair(
            question=sft[query].question,
            answers=sft[query].answers,
            sft=sft[query],
            rl=rl[query],
        )
        for query in shared[::stride][:num_pairs]
    )


def _greedy(path: Path, policy: str) -> dict[str, Trajectory]:
    """Map query id to its greedy rollout, or to its first sample where none was taken."""
    chosen: dict[str, Trajectory] = {}
    for row in iter_rows(path, Trajectory):
        known = chosen.get(row.query_id)
        if row.policy == policy and (known is None or row.sample_index < known.sample_index):
            chosen[row.query_id] = row
    return chosen
