"""The pipeline with a language model as the judge: filter, dapo and score ask it over HTTP; verl and vLLM are real.

The judge here compares texts as `exact_match` does, so what it decides is known beforehand.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from afm.jsonl import read_rows
from afm.params.root import read_params
from afm.rewards import grade_answer
from afm.scoring import ScoreRow
from afm.types import Query
from flows.commands.params import set_params
from flows.copies import SMOKE, make_copy
from flows.records import Record, read_records
from tests.e2e.conftest import REPO, command
from tests.unit.fake_server import MODEL, Answer, listed, scripted_server
from tests.unit.judge_world import KNOWN, data_of, knowing

# Six minutes: unit tests hold each stage's judge, this holds that verl's workers ask it.
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(2700)]

GOLD_QUESTIONS = {question for question, _, _ in KNOWN}
JUDGING = ("filter@mhqa", "dapo@mhqa-smoke", "score@mhqa-smoke")


class Judge:
    """An honest judge that counts what it is asked, by question, and can fall ill."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.is_ill = False

    def __call__(self, body: Any) -> Answer:
        question = data_of(body)["question"]
        if self.is_ill and question not in GOLD_QUESTIONS:
            return Answer(status=500, body={"error": "out of memory"})
        self.asked[question] = self.asked.get(question, 0) + 1
        return knowing(body)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, judge: Judge) -> Iterator[Path]:
    """A checkout whose agent is judged, up to date; its judge goes on answering."""
    copy = tmp_path_factory.mktemp("judged") / "smoke"
    with scripted_server(listed(), reply=judge) as (endpoint, _):
        make_copy(REPO, copy, SMOKE)
        set_params(copy / "params.yaml", settings(endpoint.base_url))
        done = command(copy, "dvc", "repro", "score@mhqa-smoke", timeout=2400)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        yield copy


def settings(base_url: str) -> list[str]:
    """Say that the judge is the one at an address."""
    access = {
        "model": {"name": MODEL, "revision": "r1"},
        **{"base_url": base_url, "api_key_variable": None},
        **{"timeout_s": 20.0, "concurrency": 16, "max_tries": 2, "max_total_tokens": None},
        **{"prompt_price": 0.0, "completion_price": 0.0},
    }
    who = {"endpoint": "qwen72b", "name": MODEL, "revision": "r1"}
    return [
        f"endpoints.qwen72b={json.dumps(access)}",
        f"judge.models.mhqa={json.dumps(who)}",
        "agents.mhqa.reward=llm_judge",
        "scales.smoke.sft.epochs=6",  # enough to answer
    ]


def record(copy: Path, cell: str) -> Record:
    return next(one for one in read_records(copy) if one.cell == cell)


@pytest.mark.parametrize("cell", JUDGING)
def test_each_judging_stage_reports_its_judge(copy: Path, cell: str) -> None:
    of_cell = record(copy, cell)
    name = cell.partition("@")[0]
    assert of_cell.metrics[f"{name}/judge/agreement"] == 1.0
    assert of_cell.metrics[f"{name}/judge/unjudged_share"] == 0.0


def test_rollouts_of_the_trainer_were_judged(copy: Path, judge: Judge) -> None:
    rows = [json.loads(line) for line in (copy / "data/dapo/mhqa-smoke/steps.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["unjudged"] == row["failed"] == 0 for row in rows)
    trained = {query_id for row in rows for query_id in row["queries"]["trained"]}
    queries = read_rows(copy / "data/select/mhqa/queries.jsonl", Query)
    questions = {query.question for query in queries if query.query_id in trained}
    assert questions & judge.asked.keys(), "no answer of a rollout reached the judge"


def test_its_verdicts_are_the_scores(copy: Path) -> None:
    params = read_params(copy / "params.yaml")
    queries = {
        query.query_id: query
        for query in read_rows(copy / "data/prepare/mhqa/queries/eval.jsonl", Query)
    }
    rows = read_rows(copy / "data/score/mhqa-smoke/scores.jsonl", ScoreRow)
    assert {row.score for row in rows} == {0.0, 1.0}
    for row in rows:
        known = grade_answer("exact_match", row.answer, queries[row.query_id], params.sandbox)
        assert row.score == known or not row.well_formed, row


def test_a_judge_that_falls_ill_stops_the_trainer_with_no_reward_made_up(
    copy: Path, judge: Judge
) -> None:
    judge.is_ill = True
    set_params(copy / "params.yaml", ["scales.smoke.dapo.seed=60"])
    try:
        done = command(copy, "dvc", "repro", "--single-item", "dapo@mhqa-smoke", timeout=1200)
    finally:
        judge.is_ill = False
    assert done.returncode != 0
    assert "got no verdict, more than dapo.max_unjudged_share" in done.stdout + done.stderr
