"""The score stage: records of four policies and two controls in, scores, metrics and a gate out."""

from pathlib import Path

import pytest

from afm.errors import JudgeError, UserError
from afm.jsonl import read_rows, write_rows
from afm.params.evaluation import ScoreParams
from afm.scoring import ScoreRow
from afm.types import StopReason
from stages._stage import Context
from stages.score import Inputs, Outputs, Params, run
from tests.unit.stage_helpers import finite_or_null, run_by_hand, write_params
from tests.unit.synthetic import SANDBOX, agent_params, asking_params, good_parts, query, trajectory

QUERIES = [query(f"Question {number}?", split="eval", hops=1 + number % 2) for number in range(10)]
MODEL_QUERIES = QUERIES[:8]
SAMPLES = (-1, 0, 1)
SOLVED = {"base": 0, "sft": 4, "rl": 7, "sft+shuffled": 1, "rl+shuffled": 0, "teacher:scripted": 9}
"""How many of its queries each policy solves in every sample."""
PARAMS = Params(
    agent=agent_params("mhqa"),
    sandbox=SANDBOX,
    asking=asking_params(),
    judge=None,
    score=ScoreParams(
        seed=43,
        bootstrap_resamples=300,
        confidence=0.95,
        max_unjudged_share=0.02,
        gate_tolerance=0.0,
    ),
)
CONTEXT_AXES = {"agent": "mhqa", "scale": "tiny"}


def records(policy, queries=MODEL_QUERIES, samples=SAMPLES, **fields):
    return [
        trajectory(
            asked,
            good_parts("Oslo" if number < SOLVED[policy] else "Bergen"),
            policy=policy,
            sample_index=index,
            **fields,
        )
        for number, asked in enumerate(queries)
        for index in samples
    ]


def all_records():
    return {
        "base": records("base"),
        "sft": records("sft") + records("sft+shuffled", samples=(0,)),
        "rl": records("rl") + records("rl+shuffled", samples=(0,)),
        "teacher": records("teacher:scripted", QUERIES, (0,)),
    }


def paths(folder: Path, rows) -> tuple[Inputs, Outputs]:
    write_rows(folder / "queries/eval.jsonl", QUERIES)
    for name, own in rows.items():
        write_rows(folder / f"{name}.jsonl", own)
    inputs = Inputs(queries=folder / "queries", **{n: folder / f"{n}.jsonl" for n in rows})
    out = folder / "out"
    return inputs, Outputs(
        scores=out / "scores.jsonl", gate=out / "gate.json", metrics=out / "metrics.json"
    )


def score(folder: Path, **changes):
    inputs, outputs = paths(folder, all_records() | changes)
    run(PARAMS, inputs, outputs, Context(axes=CONTEXT_AXES, scratch=folder))
    return outputs, finite_or_null(outputs.metrics)


def test_scores_metrics_and_gate(tmp_path):
    outputs, metrics = score(tmp_path)
    rows = read_rows(outputs.scores, ScoreRow)
    assert len(rows) == 3 * 24 + 2 * 8 + 8
    for variant, share in {"base": 0.0, "sft": 4 / 8, "rl": 7 / 8, "teacher": 1.0}.items():
        assert metrics[f"eval/mhqa/{variant}/avg_at_k"] == pytest.approx(share), variant
        assert metrics[f"eval/mhqa/{variant}/num_queries"] == 8
    assert metrics["eval/mhqa/rl/greedy"] == pytest.approx(7 / 8)
    assert metrics["eval/mhqa/teacher/greedy"] is None
    assert metrics["eval/mhqa/rl/k"] == 2
    assert metrics["eval/mhqa/sft_minus_base"] == pytest.approx(0.5)
    assert metrics["eval/mhqa/rl_minus_sft"] == pytest.approx(3 / 8)
    low, high = (metrics[f"eval/mhqa/rl_minus_sft_{end}"] for end in ("low", "high"))
    assert 0.0 <= low < 3 / 8 < high <= 1.0
    assert metrics["eval/mhqa/sft_shuffled/avg_at_k"] == pytest.approx(1 / 8)
    assert metrics["eval/mhqa/sft_shuffled/ratio"] == pytest.approx(1 / 4)
    assert metrics["eval/mhqa/rl_shuffled/ratio"] == 0.0
    assert metrics["eval/mhqa/base/tokens_per_solved"] is None
    assert metrics["eval/mhqa/rl/hops_1/avg_at_k"] == 1.0
    assert metrics["eval/mhqa/rl/hops_2/avg_at_k"] == pytest.approx(3 / 4)
    decided = finite_or_null(outputs.gate)
    assert decided["passed"] is True
    assert decided["champion"] == "rl"
    assert decided["rl_minus_sft"] == metrics["eval/mhqa/rl_minus_sft"]


def test_the_gate_keeps_sft_when_rl_is_worse(tmp_path):
    worse = [row.model_copy(update={"policy": "rl"}) for row in records("base")]
    outputs, metrics = score(tmp_path, rl=worse)
    assert metrics["eval/mhqa/rl_minus_sft"] == -0.5
    assert metrics["eval/mhqa/rl_shuffled/avg_at_k"] is None
    decided = finite_or_null(outputs.gate)
    assert (decided["passed"], decided["champion"]) == (False, "sft")


def test_failed_records_are_listed_counted_and_not_scored(tmp_path):
    broken = records("rl", stop_reason=StopReason.FAILED, error="ToolError: down")[-6:]
    outputs, metrics = score(tmp_path, rl=records("rl")[:-6] + broken)
    unscored = [row for row in read_rows(outputs.scores, ScoreRow) if row.score is None]
    assert [row.unscored for row in unscored] == ["failed"] * 6
    assert metrics["eval/mhqa/rl/failed_share"] == pytest.approx(6 / 24)
    assert metrics["eval/mhqa/rl/avg_at_k"] == 1.0
    assert metrics["eval/mhqa/rl/num_queries"] == 8


def test_a_judge_that_gives_no_verdicts_stops_the_stage(tmp_path, monkeypatch):
    def silent(*_):
        raise JudgeError("the judge is down")

    monkeypatch.setattr("afm.scoring.score_trajectory", silent)
    with pytest.raises(UserError, match=r"96 of 96 records got no verdict.*the judge is down"):
        score(tmp_path)


def test_the_order_of_rows_changes_no_number(tmp_path):
    _, metrics = score(tmp_path / "a")
    turned = {name: own[::-1] for name, own in all_records().items()}
    _, again = score(tmp_path / "b", **turned)
    assert again == metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl": records("rl", MODEL_QUERIES[1:])}, "rl lacks 1 of the queries of base"),
        ({"rl": records("rl", QUERIES)}, "and has 2 that base lacks"),
        ({"teacher": records("teacher:scripted", QUERIES[1:], (0,))}, "teacher lacks 1"),
        ({"teacher": records("teacher:scripted", QUERIES[8:], (0,))}, "teacher lacks 8"),
        ({"sft": records("sft")[:-1]}, "sft: query .* has the samples"),
        ({"sft": records("sft", samples=(0,))}, "sft has 1 samples per query, base has 2"),
        ({"sft": records("sft+shuffled")}, "sft lacks 8"),
        ({"sft": records("rl")}, r"sft\.jsonl:1: policy 'rl', expected 'sft'"),
        ({"sft": []}, "no records: evaluate sft again"),
        (
            {"base": records("base", [*MODEL_QUERIES, query("Unknown?")])},
            r"base\.jsonl:25: unknown query_id",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        score(tmp_path, **changes)


def test_by_hand(tmp_path):
    inputs, outputs = paths(tmp_path, all_records())
    done = run_by_hand(
        "score", "--agent", "mhqa", "--scale", "tiny", "--queries", inputs.queries,
        "--base", inputs.base, "--sft", inputs.sft, "--rl", inputs.rl, "--teacher", inputs.teacher,
        "--out-scores", outputs.scores, "--out-gate", outputs.gate,
        "--out-metrics", outputs.metrics, "--scratch", tmp_path / "scratch",
        "--params", write_params(tmp_path, {"score.bootstrap_resamples": 100}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert finite_or_null(outputs.metrics)["eval/mhqa/rl/avg_at_k"] == pytest.approx(7 / 8)
