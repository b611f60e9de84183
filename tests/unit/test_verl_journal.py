"""steps.jsonl and metrics.json of a DAPO run."""

import math
from pathlib import Path

from afm.training.verl.journal import (
    append_row,
    cut_back,
    read_steps,
    step_row,
    without_seconds,
)
from afm.training.verl.summary import summarise

METRICS = {
    "actor/ppo_kl": 0.5,
    "actor/grad_norm": 1.5,
    "training/rollout_probs_diff_max": 1e-8,
    "dapo/reward_mean": 0.25,
    "perf/throughput": 1000.0,
}


def test_a_row_has_our_names_and_nan_for_what_is_missing() -> None:
    row = step_row(3, METRICS, {"gen": 1.23456})
    assert (row["step"], row["kl"], row["reward_mean"]) == (3, 0.5, 0.25)
    assert row["seconds/generation"] == 1.235
    assert math.isnan(row["lr"])
    assert not any(key.startswith(("perf/", "actor/", "dapo/")) for key in row)


def test_nan_is_written_as_null_and_half_a_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    append_row(path, step_row(1, METRICS, {}))
    with path.open("a") as stream:
        stream.write('{"step": 2, "entr')
    rows = read_steps(path)
    assert [row["step"] for row in rows] == [1]
    assert rows[0]["lr"] is None


def test_resuming_cuts_back_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for step in (1, 2, 3):
        append_row(path, {"step": step})
    cut_back(path, 2)
    append_row(path, {"step": 3})
    assert [row["step"] for row in read_steps(path)] == [1, 2, 3]
    cut_back(path, 0)
    assert read_steps(path) == []


def test_no_seconds_in_outputs() -> None:
    assert without_seconds([{"step": 1, "seconds/update": 2.0}]) == [{"step": 1}]


def test_the_summary_adds_up() -> None:
    first = {
        "reward_mean": 0.1, "acc_mean": 0.2, "kept_groups": 2, "groups": 4, "probs_diff_max": 1e-8,
        "failed": 1, "policy_tokens": 30, "observation_tokens": 10, "rollouts/mhqa": 16,
    }  # fmt: skip
    last = first | {"reward_mean": 0.5, "probs_diff_max": 3e-8, "rollouts/web": 4}
    metrics = summarise([first, last])
    assert metrics["dapo/reward_first"] == 0.1
    assert metrics["dapo/reward_last"] == 0.5
    assert metrics["dapo/kept_group_share"] == 0.5
    assert metrics["dapo/probs_diff_max"] == 3e-8
    assert metrics["dapo/observation_token_share"] == 0.25
    assert (metrics["dapo/rollouts/mhqa"], metrics["dapo/rollouts/web"]) == (32, 4)
    assert metrics["dapo/failed"] == 2
