"""Every reason for which a trajectory can be dropped is one that the scripted teacher gives, by a mistake."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from afm.filters import KNOBS
from afm.jsonl import read_rows, write_rows
from afm.params.root import read_params, read_tree
from afm.teachers.demonstrate import Demonstration, Setting, demonstrate
from afm.types import LedgerRow, Query
from stages import filter as filtering
from stages import prepare
from stages._stage import Context, load_params

ROOT = Path(__file__).parents[2]
PARAMS = read_params(ROOT / "params.yaml")
AXES = {"agent": "mhqa"}
NUM_QUERIES = 400
CAUSES = {
    "too_few_hops": {"too_few_steps"},
    "unfinished": {"unfinished"},
    "wrong_answer": {"wrong_answer"},
    "redundant_call": {"redundant_call"},
    "instruction_violation": {"instruction_violation"},
    "no_reflection": {"missing_reflection"},
}
"""Reason -> the mistakes that lead to it."""
JUDGE_S = {"unjudged"}
"""Reasons that are no fault of the teacher: the judge gave no verdict."""


@dataclass(frozen=True, kw_only=True)
class World:
    folder: Path
    done: list[Demonstration]

    @property
    def queries(self) -> Path:
        return self.folder / "queries"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Real questions, and what the teacher of params.yaml does with them through the real tools."""
    folder = tmp_path_factory.mktemp("world")
    tree = read_tree(ROOT / "params.yaml")
    counts = {"mhqa": {"sft": NUM_QUERIES, "rl": 10, "eval": 10}}
    tree["prepare"] |= {"cities_per_country": 10, "counts": counts}
    made = prepare.Outputs(
        queries=folder / "queries",
        corpus=folder / "corpus.jsonl",
        index=folder / "index",
        card=folder / "card.md",
        metrics=folder / "prepare.json",
    )
    params = load_params(prepare.STAGE, tree, AXES, "params")
    prepare.run(params, prepare.Inputs(), made, Context(axes=AXES, scratch=folder))
    setting = Setting(
        agent="mhqa",
        agent_params=PARAMS.agents["mhqa"],
        teacher=PARAMS.teacher,
        tools=PARAMS.tools,
        sandbox=PARAMS.sandbox,
        index=made.index,
        cell="rollout@test",
        num_samples=1,
        seed=PARAMS.rollout.seed,
        concurrency=4,
    )
    done = demonstrate(setting, read_rows(made.queries / "sft.jsonl", Query))
    write_rows(folder / "trajectories.jsonl", [d.trajectory for d in done])
    return World(folder=folder, done=done)


def filtered(world: World, out: Path, measure: str) -> list[LedgerRow]:
    tree = read_tree(ROOT / "params.yaml")
    if measure == "tool_calls":
        tree["filter"]["complexity"] = {"measure": measure, "minimum": 2}
    outputs = filtering.Outputs(
        accepted=out / "accepted.jsonl", ledger=out / "ledger.jsonl", metrics=out / "metrics.json"
    )
    inputs = filtering.Inputs(
        queries=world.queries, trajectories=world.folder / "trajectories.jsonl"
    )
    params = load_params(filtering.STAGE, tree, AXES, "params")
    filtering.run(params, inputs, outputs, Context(axes=AXES, scratch=out))
    return read_rows(outputs.ledger, LedgerRow)


def test_every_reason_has_a_mistake_that_triggers_it(world: World, tmp_path: Path) -> None:
    ledger = filtered(world, tmp_path, "hops")
    triggered: dict[str, Counter[str | None]] = defaultdict(Counter)
    for row, done in zip(ledger, world.done, strict=True):
        triggered[row.reason][done.mistake] += 1
    assert {reason: set(found) for reason, found in triggered.items() if reason != "ok"} == CAUSES
    assert CAUSES.keys() | JUDGE_S | {"too_few_tool_calls"} == KNOBS.keys()
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for reason in CAUSES:
        assert metrics[f"filter/dropped/{reason}"] == triggered[reason].total() > 0
    assert triggered["ok"][None] == sum(done.mistake is None for done in world.done)


def test_so_has_the_reason_of_the_other_measure(world: World, tmp_path: Path) -> None:
    ledger = filtered(world, tmp_path, "tool_calls")
    short = [row for row in ledger if row.reason == "too_few_tool_calls"]
    assert short
    assert {"too_few_steps"} <= {
        done.mistake
        for row, done in zip(ledger, world.done, strict=True)
        if row.reason == "too_few_tool_calls"
    }


def test_unfinished_rows_are_expected_at_scale_tiny() -> None:
    expected = PARAMS.teacher.mistakes.unfinished * PARAMS.prepare.counts["mhqa"].sft
    assert expected >= 5
