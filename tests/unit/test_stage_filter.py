"""The filter stage: rows, ledger and metrics agree; bad input stops with one message."""

from collections import Counter
from pathlib import Path

import pytest

from afm.errors import JudgeError, UserError
from afm.jsonl import read_rows, write_rows
from afm.rewards import grade_answer
from afm.types import LedgerRow, Trajectory
from stages._stage import Context, load_params
from stages.filter import STAGE, Inputs, Outputs, run
from tests.unit.stage_helpers import finite_or_null, run_by_hand, write_params
from tests.unit.synthetic import (
    PLAN,
    REFLECTION,
    answer,
    check,
    good_parts,
    params_tree,
    query,
    search,
    suggest,
    trajectory,
)

QUERIES = [query(f"Question {number}?") for number in range(6)]
CORRECTED = [
    PLAN + search("author of B"),
    "obs:B was written by C.",
    suggest("C") + check(1) + search("birthplace of C"),
    "obs:C was born in Oslo.",
    REFLECTION + suggest("Oslo") + check(4) + answer("Oslo"),
]
REPEATED = [PLAN + search("B"), "obs:B.", search("b"), *good_parts()[1:]]
ROWS = [
    trajectory(QUERIES[0], good_parts()),
    trajectory(QUERIES[1], CORRECTED),
    trajectory(QUERIES[2], good_parts("Bergen")),
    trajectory(QUERIES[3], [suggest("Oslo") + check(4) + answer("Oslo")]),
    trajectory(QUERIES[4], REPEATED),
    trajectory(QUERIES[0], good_parts(), sample_index=1),
]
EXPECTED = ["ok", "ok", "wrong_answer", "too_few_hops", "redundant_call", "ok"]


def paths(folder: Path, rows=ROWS, queries=QUERIES) -> tuple[Inputs, Outputs]:
    write_rows(folder / "queries/sft.jsonl", queries)
    write_rows(folder / "trajectories.jsonl", rows)
    inputs = Inputs(queries=folder / "queries", trajectories=folder / "trajectories.jsonl")
    names = ("accepted.jsonl", "ledger.jsonl", "metrics.json")
    accepted, ledger, metrics = (folder / "out" / name for name in names)
    return inputs, Outputs(accepted=accepted, ledger=ledger, metrics=metrics)


def filter_rows(folder: Path, rows=ROWS, tree=None, agent="mhqa") -> Outputs:
    inputs, outputs = paths(folder, rows)
    axes = {"agent": agent}
    params = load_params(STAGE, tree or params_tree(), axes, where="params")
    run(params, inputs, outputs, Context(axes=axes, scratch=folder))
    return outputs


def test_rows_ledger_and_metrics_agree(tmp_path):
    outputs = filter_rows(tmp_path)
    ledger = read_rows(outputs.ledger, LedgerRow)
    assert [row.reason for row in ledger] == EXPECTED
    assert [row.id for row in ledger] == [row.trajectory_id for row in ROWS]
    kept = [ROWS[0], ROWS[1], ROWS[1], ROWS[5]]
    assert read_rows(outputs.accepted, Trajectory) == kept
    metrics = finite_or_null(outputs.metrics)
    counts = Counter(row.reason for row in ledger)
    for key, value in metrics.items():
        if key.startswith("filter/dropped/"):
            assert value == counts[key.removeprefix("filter/dropped/")], key
    assert metrics["filter/input"] == 6
    assert metrics["filter/accepted"] == counts["ok"] == 3
    assert metrics["filter/rows_out"] == 4
    assert metrics["filter/upsampled"] == 1
    assert metrics["filter/hops_mean"] == pytest.approx((7 + 9 + 7) / 3)


def test_same_input_gives_the_same_bytes(tmp_path):
    first, second = filter_rows(tmp_path / "a"), filter_rows(tmp_path / "b")
    for name in ("accepted", "ledger", "metrics"):
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes()


def test_nothing_accepted_names_counts_and_knobs_and_leaves_the_ledger(tmp_path):
    tree = params_tree()
    tree["filter"]["complexity"]["minimum"] = 8
    rows = [ROWS[0], ROWS[3], trajectory(QUERIES[5], REPEATED)]
    with pytest.raises(UserError) as caught:
        filter_rows(tmp_path, rows, tree)
    message = str(caught.value)
    assert "none of 3 trajectories of agent 'mhqa' was accepted" in message
    assert "2 too_few_hops (lower filter.complexity.minimum)" in message
    assert "1 redundant_call (raise filter.quality.max_repeated_calls)" in message
    assert len(read_rows(tmp_path / "out/ledger.jsonl", LedgerRow)) == 3
    assert not (tmp_path / "out/accepted.jsonl").exists()


def test_a_judge_that_gives_no_verdicts_stops_the_stage(tmp_path, monkeypatch):
    def silent(name, given, asked, sandbox, judge):
        if asked == QUERIES[0]:
            raise JudgeError("the judge is down")
        return grade_answer(name, given, asked, sandbox, judge)

    monkeypatch.setattr("stages.filter.grade_answer", silent)
    with pytest.raises(UserError, match=r"2 of 5 answers got no verdict.*the judge is down"):
        filter_rows(tmp_path / "strict")
    tree = params_tree()
    tree["filter"]["quality"]["max_unjudged_share"] = 0.4
    metrics = finite_or_null(filter_rows(tmp_path / "lax", tree=tree).metrics)
    assert (metrics["filter/dropped/unjudged"], metrics["filter/accepted"]) == (2, 1)


def test_empty_input_is_named(tmp_path):
    with pytest.raises(UserError, match="the input is empty"):
        filter_rows(tmp_path, [])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (trajectory(query("Never asked?"), good_parts()), "unknown query_id"),
        (ROWS[0], "trajectory_id .* stands in line 1 too"),
        (trajectory(query(agent="code"), good_parts()), "trajectory of agent 'code', not 'mhqa'"),
    ],
)
def test_a_foreign_row_is_named_by_file_and_line(tmp_path, row, message):
    with pytest.raises(UserError, match=rf"trajectories\.jsonl:7: {message}"):
        filter_rows(tmp_path, [*ROWS, row])


def test_a_held_out_query_is_not_accepted(tmp_path):
    inputs, outputs = paths(tmp_path, queries=QUERIES[1:])
    write_rows(tmp_path / "queries/eval.jsonl", QUERIES[:1])
    axes = {"agent": "mhqa"}
    params = load_params(STAGE, params_tree(), axes, where="params")
    with pytest.raises(UserError, match=r"trajectories\.jsonl:1: unknown query_id"):
        run(params, inputs, outputs, Context(axes=axes, scratch=tmp_path))


def flags(folder: Path, params: Path) -> list[str | Path]:
    inputs, outputs = paths(folder)
    return [
        "--agent", "mhqa", "--queries", inputs.queries, "--trajectories", inputs.trajectories,
        "--out-accepted", outputs.accepted, "--out-ledger", outputs.ledger,
        "--out-metrics", outputs.metrics, "--scratch", folder / "scratch", "--params", params,
    ]  # fmt: skip


def test_by_hand(tmp_path):
    done = run_by_hand("filter", *flags(tmp_path, write_params(tmp_path, {})))
    assert done.returncode == 0, done.stderr
    assert "6/6 trajectories filtered" in done.stderr
    assert finite_or_null(tmp_path / "out/metrics.json")["filter/accepted"] == 3


def test_by_hand_what_a_user_can_mend_is_one_line_without_traceback(tmp_path):
    params = write_params(tmp_path, {"filter.complexity.minimum": 99})
    done = run_by_hand("filter", *flags(tmp_path, params))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "filter: none of 6 trajectories" in done.stderr
