"""The stages rollout and demonstrate."""

import subprocess
import sys
from pathlib import Path

import pytest

from afm.errors import ToolError, UserError
from afm.jsonl import read_json, read_rows, write_rows
from afm.params.root import read_params
from afm.teachers.script import MISTAKES
from afm.tools import LocalToolbox, ToolResult
from afm.types import StopReason, Trajectory
from stages import demonstrate, rollout
from stages._stage import Context
from tests.unit.teacher_world import make_world_index, world_queries

ROOT = Path(__file__).parents[2]
PARAMS = read_params(ROOT / "params.yaml")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> rollout.Inputs:
    folder = tmp_path_factory.mktemp("prepare")
    write_rows(folder / "queries" / "sft.jsonl", world_queries("mhqa"))
    held_out = [q.model_copy(update={"split": "eval"}) for q in world_queries("mhqa")]
    write_rows(folder / "queries" / "eval.jsonl", held_out)
    return rollout.Inputs(queries=folder / "queries", index=make_world_index(folder / "index"))


def run_rollout(inputs: rollout.Inputs, folder: Path, max_failed_share: float = 0.05) -> None:
    limits = {"num_samples": 8, "max_failed_share": max_failed_share}
    params = rollout.Params(
        agent=PARAMS.agents["mhqa"],
        tools=PARAMS.tools,
        sandbox=PARAMS.sandbox,
        teacher=PARAMS.teacher,
        rollout=PARAMS.rollout.model_copy(update=limits),
    )
    outputs = rollout.Outputs(
        trajectories=folder / "trajectories.jsonl",
        failures=folder / "failures.jsonl",
        metrics=folder / "metrics.json",
    )
    rollout.run(params, inputs, outputs, Context(axes={"agent": "mhqa"}, scratch=folder))


def test_rollout_writes_the_same_bytes_twice(inputs: rollout.Inputs, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_rollout(inputs, tmp_path / name)
    for file in sorted(path.name for path in (tmp_path / "one").iterdir()):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    rows = read_rows(tmp_path / "one" / "trajectories.jsonl", Trajectory)
    assert len(rows) == 40
    assert len({row.trajectory_id for row in rows}) == 40
    metrics = read_json(tmp_path / "one" / "metrics.json")
    assert (metrics["rollout/rollouts"], metrics["rollout/failed"]) == (40, 0)
    answered = [row for row in rows if row.stop_reason is StopReason.ANSWERED]
    assert metrics["rollout/success_share"] == len(answered) / 40
    assert metrics["rollout/mistakes/unfinished"] == 40 - len(answered)
    assert {f"rollout/mistakes/{name}" for name in MISTAKES} <= set(metrics)
    assert sum(metrics[f"rollout/mistakes/{name}"] for name in MISTAKES) > 0
    calls = sum(row.num_tool_calls for row in rows)
    assert metrics["rollout/tool_calls_mean"] == pytest.approx(calls / 40)


def break_tool(monkeypatch: pytest.MonkeyPatch, *, every: int) -> None:
    count = 0
    works = LocalToolbox.call

    async def call(self: LocalToolbox, tool: str, argument: str) -> ToolResult:
        nonlocal count
        count += 1
        if count % every == 0:
            raise ToolError("search is down")
        return await works(self, tool, argument)

    monkeypatch.setattr(LocalToolbox, "call", call)


def test_failures_are_kept_apart(
    inputs: rollout.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_tool(monkeypatch, every=10)
    run_rollout(inputs, tmp_path, max_failed_share=0.9)
    failures = read_rows(tmp_path / "failures.jsonl", Trajectory)
    finished = read_rows(tmp_path / "trajectories.jsonl", Trajectory)
    metrics = read_json(tmp_path / "metrics.json")
    assert len(failures) == metrics["rollout/failed"] > 0
    assert len(failures) + len(finished) == metrics["rollout/rollouts"] == 40
    assert {row.stop_reason for row in failures} == {StopReason.FAILED}
    assert {row.error for row in failures} == {"ToolError: search is down"}
    assert StopReason.FAILED not in {row.stop_reason for row in finished}


def test_too_many_failures_stop_the_stage(
    inputs: rollout.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_tool(monkeypatch, every=1)
    with pytest.raises(
        UserError, match=r"40 of 40 rollouts failed.*max_failed_share = 0\.05.*search is down"
    ):
        run_rollout(inputs, tmp_path)
    assert len(read_rows(tmp_path / "failures.jsonl", Trajectory)) == 40
    assert not (tmp_path / "trajectories.jsonl").exists()


def test_demonstrate_from_the_command_line(inputs: rollout.Inputs, tmp_path: Path) -> None:
    arguments = ["--agent", "mhqa", "--queries", inputs.queries, "--index", inputs.index]
    outputs = ["--out-records", tmp_path / "records.jsonl", "--out-metrics", tmp_path / "m.json"]
    command = [sys.executable, "-m", "stages.demonstrate", *arguments, *outputs]
    done = subprocess.run(
        [*map(str, command), "--scratch", str(tmp_path / "scratch")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "5/5 rollouts" in done.stderr
    records = read_rows(tmp_path / "records.jsonl", Trajectory)
    assert [record.sample_index for record in records] == [0] * 5
    assert {record.policy for record in records} == {"teacher:scripted"}
    assert all(record.answer in record.answers for record in records)
    metrics = read_json(tmp_path / "m.json")
    assert all(metrics[f"demonstrate/mistakes/{name}"] == 0 for name in MISTAKES)


def test_a_missing_split_is_named(inputs: rollout.Inputs, tmp_path: Path) -> None:
    params = demonstrate.Params(
        agent=PARAMS.agents["mhqa"],
        tools=PARAMS.tools,
        sandbox=PARAMS.sandbox,
        teacher=PARAMS.teacher,
        evaluate=PARAMS.evaluate,
    )
    empty = demonstrate.Inputs(queries=tmp_path, index=inputs.index)
    outputs = demonstrate.Outputs(records=tmp_path / "r.jsonl", metrics=tmp_path / "m.json")
    context = Context(axes={"agent": "mhqa"}, scratch=tmp_path)
    with pytest.raises(UserError, match=r"no such file: .*eval\.jsonl"):
        demonstrate.run(params, empty, outputs, context)
