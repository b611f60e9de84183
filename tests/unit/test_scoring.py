"""Scores of evaluation records, and the numbers made of them, against sums by hand."""

import itertools
import math
import statistics

import pytest

from afm.comparison import gate, summarise
from afm.errors import JudgeError, UserError
from afm.evaluation import GREEDY
from afm.params.evaluation import ScoreParams
from afm.scoring import (
    PolicyScores,
    Scorer,
    ScoreRow,
    check_complete,
    check_same_queries,
)
from afm.types import StopReason
from tests.unit.synthetic import SANDBOX, agent_params, answer, good_parts, query, trajectory

PARAMS = ScoreParams(
    seed=43, bootstrap_resamples=500, confidence=0.95, max_unjudged_share=0.02, gate_tolerance=0.0
)
SCORER = Scorer(agent_params=agent_params("mhqa"), sandbox_params=SANDBOX)


def row(query_id, index, score, variant="sft", *, hops=2, tokens=100, calls=2, control=False):
    return ScoreRow(
        trajectory_id=f"{variant}{query_id}{index}{control}",
        query_id=query_id,
        variant=variant,
        control=control,
        sample_index=index,
        hops=hops,
        score=score,
        unscored="failed" if score is None else None,
        error="ToolError: down" if score is None else None,
        breakdown={},
        answer="x" if score else None,
        stop_reason=StopReason.FAILED if score is None else StopReason.ANSWERED,
        well_formed=bool(score),
        num_tool_calls=calls,
        tokens=tokens,
    )


def policy(scores, variant="sft", **fields) -> PolicyScores:
    """Make rows from {query: (greedy, samples)}."""
    rows = []
    for query_id, (greedy, samples) in scores.items():
        rows.append(row(query_id, GREEDY, greedy, variant, **fields))
        rows += [row(query_id, i, score, variant, **fields) for i, score in enumerate(samples)]
    return PolicyScores(rows=tuple(rows))


SFT = policy({"a": (1.0, (1.0, 0.0)), "b": (0.0, (0.0, None)), "c": (0.0, (None, None))})
BASE = policy(dict.fromkeys("abc", (0.0, (0.0, 0.0))), "base")
RL = policy({"a": (1.0, (1.0, 1.0)), "b": (1.0, (1.0, 0.0)), "c": (1.0, (1.0, 1.0))}, "rl")
TEACHER = PolicyScores(rows=tuple(row(name, 0, 1.0, "teacher") for name in "abc"))
VARIANTS = {"base": BASE, "sft": SFT, "rl": RL, "teacher": TEACHER}


def test_failed_records_are_counted_and_never_scored():
    metrics = summarise("mhqa", VARIANTS, {}, PARAMS)
    assert metrics["eval/mhqa/sft/avg_at_k"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["eval/mhqa/sft/failed_share"] == pytest.approx(3 / 9)
    assert metrics["eval/mhqa/sft/pass_at_k"] == 1.0
    assert metrics["eval/mhqa/sft/answered_share"] == pytest.approx(1 / 3)
    assert metrics["eval/mhqa/sft/well_formed_share"] == pytest.approx(1 / 3)
    assert metrics["eval/mhqa/sft/greedy"] == pytest.approx(1 / 3)
    assert metrics["eval/mhqa/sft/tokens_per_solved"] == 300
    assert metrics["eval/mhqa/sft/tool_calls_per_solved"] == 6


def test_metrics_of_complete_variants():
    metrics = summarise("mhqa", VARIANTS, {}, PARAMS)
    assert metrics["eval/mhqa/rl/avg_at_k"] == pytest.approx(5 / 6)
    assert metrics["eval/mhqa/rl/pass_at_k"] == 1.0
    assert metrics["eval/mhqa/rl/k"] == 2
    assert metrics["eval/mhqa/rl/num_queries"] == 3
    assert metrics["eval/mhqa/rl/tokens_per_solved"] == pytest.approx(600 / 5)
    assert metrics["eval/mhqa/base/avg_at_k"] == 0.0
    assert math.isnan(metrics["eval/mhqa/base/tokens_per_solved"])
    assert metrics["eval/mhqa/teacher/avg_at_k"] == 1.0
    assert math.isnan(metrics["eval/mhqa/teacher/greedy"])
    # Paired over a and b only: c has no scored SFT sample.
    assert metrics["eval/mhqa/rl_minus_sft"] == pytest.approx((0.5 + 0.5) / 2)
    assert metrics["eval/mhqa/sft_minus_base"] == pytest.approx(0.25)
    low, high = (metrics[f"eval/mhqa/sft_minus_base_{end}"] for end in ("low", "high"))
    assert 0.0 <= low <= 0.25 <= high <= 0.5


def test_metrics_by_hops():
    rows = (*policy({"a": (1.0, (1.0, 1.0))}, hops=1).rows, *policy({"b": (0, (0.0, 1.0))}).rows)
    metrics = summarise("mhqa", VARIANTS | {"rl": PolicyScores(rows=rows)} | _on("ab"), {}, PARAMS)
    assert metrics["eval/mhqa/rl/hops_1/avg_at_k"] == 1.0
    assert metrics["eval/mhqa/rl/hops_2/avg_at_k"] == 0.5


def _on(names):
    return {name: policy(dict.fromkeys(names, (0.0, (0.0, 0.0))), name) for name in ("base", "sft")}


def test_control_has_a_ratio_to_its_own_variant():
    control = policy(dict.fromkeys("abc", (0.0, (0.0, 1.0))), "rl", control=True)
    metrics = summarise("mhqa", VARIANTS, {"rl": control}, PARAMS)
    assert metrics["eval/mhqa/rl_shuffled/avg_at_k"] == 0.5
    assert metrics["eval/mhqa/rl_shuffled/ratio"] == pytest.approx(0.5 / (5 / 6))
    assert math.isnan(metrics["eval/mhqa/sft_shuffled/avg_at_k"])
    assert math.isnan(metrics["eval/mhqa/sft_shuffled/ratio"])


@pytest.mark.parametrize(
    ("difference", "tolerance", "champion"),
    [(0.1, 0.0, "rl"), (0.0, 0.0, "rl"), (-0.1, 0.0, "sft"), (-0.1, 0.2, "rl"),
     (math.nan, 0.5, "sft")],
)  # fmt: skip
def test_gate(difference, tolerance, champion):
    key = "eval/mhqa/rl_minus_sft"
    metrics = {key: difference, f"{key}_low": -1.0, f"{key}_high": 1.0}
    decided = gate("mhqa", metrics, tolerance)
    assert decided["passed"] is (champion == "rl")
    assert decided["champion"] == champion
    assert decided["tolerance"] == tolerance


def test_differing_queries_and_samples_are_refused():
    with pytest.raises(UserError, match=r"rl lacks 1 of the queries of sft \(for instance \['b'\]"):
        check_same_queries({"sft": SFT, "rl": policy({"a": (0, (0, 0)), "c": (0, (0, 0))})}, ())
    other_k = policy(dict.fromkeys("abc", (0.0, (0.0,))))
    with pytest.raises(UserError, match="rl has 1 samples per query, sft has 2"):
        check_same_queries({"sft": SFT, "rl": other_k}, ("sft", "rl"))
    check_same_queries({"sft": SFT, "teacher": other_k}, ("sft", "rl"))


def test_a_missing_and_a_repeated_sample_are_refused():
    check_complete("sft", SFT)
    with pytest.raises(UserError, match=r"sft: query c has the samples \[-1, 0\]"):
        check_complete("sft", PolicyScores(rows=SFT.rows[:-1]))
    with pytest.raises(UserError, match="query a has"):
        check_complete("sft", PolicyScores(rows=(*SFT.rows, SFT.rows[0])))


def test_scorer_keeps_the_evidence():
    asked = query(split="eval", hops=3)
    record = trajectory(asked, good_parts(), policy="rl+shuffled", sample_index=2)
    scored = SCORER.score(record, asked, "rl")
    assert scored.model_dump() == {
        "schema_version": 1,
        "trajectory_id": record.trajectory_id,
        "query_id": asked.query_id,
        "variant": "rl",
        "control": True,
        "sample_index": 2,
        "hops": 3,
        "score": 1.0,
        "unscored": None,
        "error": None,
        "breakdown": {"answer": 1.0},
        "answer": "Oslo",
        "stop_reason": "answered",
        "well_formed": True,
        "num_tool_calls": 2,
        "tokens": 100,
    }
    assert not SCORER.score(trajectory(asked, [answer("Oslo")]), asked, "rl").well_formed


def test_scorer_leaves_failed_and_unjudged_without_a_score(monkeypatch):
    asked = query(split="eval")
    failed = trajectory(asked, good_parts(), stop_reason=StopReason.FAILED, error="ModelError: x")
    scored = SCORER.score(failed, asked, "rl")
    assert (scored.score, scored.unscored) == (None, "failed")
    assert scored.error == "ModelError: x"

    def silent(*_):
        raise JudgeError("no verdict")

    monkeypatch.setattr("afm.scoring.score_trajectory", silent)
    scored = SCORER.score(trajectory(asked, good_parts()), asked, "rl")
    assert (scored.score, scored.unscored) == (None, "unjudged")
    assert scored.error == "no verdict"


def test_avg_at_k_interval_resamples_queries():
    scores = {str(number): (0.0, (float(number % 2),) * 4) for number in range(40)}
    variants = {name: policy(scores, name) for name in VARIANTS}
    metrics = summarise("mhqa", variants, {}, PARAMS)
    low, high = (metrics[f"eval/mhqa/rl/avg_at_k_{end}"] for end in ("low", "high"))
    draws = itertools.islice(itertools.cycle([0.0, 1.0]), 40)
    width = 2 * 1.96 * statistics.pstdev(draws) / math.sqrt(40)
    assert high - low == pytest.approx(width, rel=0.25)
    assert metrics["eval/mhqa/rl_minus_sft_low"] == metrics["eval/mhqa/rl_minus_sft_high"] == 0.0
