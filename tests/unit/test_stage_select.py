"""The select stage: rows, ledger and metrics agree."""

from collections import Counter
from pathlib import Path

import pytest

from afm.errors import UserError
from afm.jsonl import read_rows, write_rows
from afm.params.screening import SelectParams
from afm.screening import PassRate
from afm.types import LedgerRow, Query
from stages._stage import Context
from stages.select import Inputs, Outputs, Params, run
from tests.unit.stage_helpers import finite_or_null, run_by_hand, write_params
from tests.unit.synthetic import good_parts, query, trajectory

CANDIDATES = [query(f"Question {number}?", split="rl") for number in range(12)]
RATES = [
    PassRate(query_id=asked.query_id, num_samples=4, num_correct=number % 4, pass_rate=number % 4 / 4)
    for number, asked in enumerate(CANDIDATES)
]  # fmt: skip
ACCEPTED = [trajectory(CANDIDATES[0], good_parts())] * 2
PARAMS = Params(select=SelectParams(seed=37, max_pass_rate={"mhqa": 0.3}, num_queries=4))


def paths(folder: Path) -> tuple[Inputs, Outputs]:
    write_rows(folder / "queries/rl.jsonl", CANDIDATES)
    write_rows(folder / "pass_rates.jsonl", RATES)
    write_rows(folder / "accepted.jsonl", ACCEPTED)
    inputs = Inputs(
        queries=folder / "queries",
        pass_rates=folder / "pass_rates.jsonl",
        accepted=folder / "accepted.jsonl",
    )
    out = folder / "out"
    return inputs, Outputs(
        selected=out / "queries.jsonl", ledger=out / "ledger.jsonl", metrics=out / "metrics.json"
    )


def test_rows_ledger_and_metrics_agree(tmp_path):
    inputs, outputs = paths(tmp_path)
    run(PARAMS, inputs, outputs, Context(axes={"agent": "mhqa"}, scratch=tmp_path))
    ledger = read_rows(outputs.ledger, LedgerRow)
    counts = Counter(row.reason for row in ledger)
    assert counts == {"too_easy": 6, "in_sft": 1, "not_chosen": 1, "ok": 4}
    kept = {row.query_id for row in ledger if row.decision == "kept"}
    chosen = read_rows(outputs.selected, Query)
    assert [asked.query_id for asked in CANDIDATES if asked.query_id in kept] == [
        asked.query_id for asked in chosen
    ]
    assert finite_or_null(outputs.metrics) == {
        "select/candidates": 12,
        "select/kept": 4,
        "select/screened_out_share": 0.5,
        "select/dropped/too_easy": 6,
        "select/dropped/in_sft": 1,
        "select/dropped/not_chosen": 1,
    }


def test_an_agent_without_threshold_is_named(tmp_path):
    inputs, outputs = paths(tmp_path)
    with pytest.raises(UserError, match=r"no entry for agent 'web': it has \['mhqa'\]"):
        run(PARAMS, inputs, outputs, Context(axes={"agent": "web"}, scratch=tmp_path))


def test_by_hand(tmp_path):
    inputs, outputs = paths(tmp_path)
    done = run_by_hand(
        "select", "--agent", "mhqa", "--queries", inputs.queries, "--pass-rates", inputs.pass_rates,
        "--accepted", inputs.accepted, "--out-selected", outputs.selected,
        "--out-ledger", outputs.ledger, "--out-metrics", outputs.metrics,
        "--scratch", tmp_path / "scratch",
        "--params", write_params(tmp_path, {"select.num_queries": 3}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert finite_or_null(outputs.metrics)["select/kept"] == 3
