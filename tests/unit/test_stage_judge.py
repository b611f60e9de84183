"""Stages with a language model as the judge, over real HTTP: verdicts, calibration, what stops them, who is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afm import retrying
from afm.errors import UserError
from afm.jsonl import read_json, read_rows, write_json
from afm.params.root import Params, read_params
from afm.rewards.gold_pairs import read_pairs
from afm.scoring import ScoreRow
from afm.types import LedgerRow
from flows.commands.params import set_params
from flows.dag import Cell
from flows.gpus import _gpus
from flows.identity import parse_request
from flows.submission import _endpoints
from stages import filter as filter_stage
from stages import score as score_stage
from stages._stage import ENDPOINTS, Context, load_params
from tests.support.endpoint_toy import block
from tests.unit import test_stage_filter, test_stage_score
from tests.unit.fake_server import MODEL, Answer, listed, said, scripted_server
from tests.unit.judge_world import data_of, knowing, verdict
from tests.unit.stage_helpers import finite_or_null
from tests.unit.synthetic import ROOT, params_tree

JUDGE = {"endpoint": "judge", "name": MODEL, "revision": "r"}
QWEN = "{endpoint: qwen72b, name: Qwen/Qwen2.5-72B-Instruct, revision: 495f39366efef23836d0cfae4fbe635880d2be31}"


GOLDS = read_pairs()[::14]
"""A part of the gold set, to save seconds."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("afm.rewards.calibration.read_pairs", lambda: GOLDS)


def tree(judge: Any = JUDGE) -> dict[str, Any]:
    found = params_tree()
    found["agents"]["mhqa"]["reward"] = "llm_judge"
    found["judge"]["models"]["mhqa"] = judge
    return found


def context(folder: Path, base_url: str) -> Context:
    access = block("r") | {"serve": None, "base_url": base_url, "concurrency": 16, "max_tries": 2}
    write_json(folder / "scratch" / ENDPOINTS, {"judge": access})
    return Context(axes={"agent": "mhqa", "scale": "tiny"}, scratch=folder / "scratch")


def run_filter(folder: Path, reply: Callable[[Any], Answer], judge: Any = JUDGE) -> Any:
    inputs, outputs = test_stage_filter.paths(folder)
    with scripted_server(listed(), reply=reply) as (endpoint, script):
        at = context(folder, endpoint.base_url)
        params = load_params(filter_stage.STAGE, tree(judge), at.axes, where="params")
        filter_stage.run(params, inputs, outputs, at)
    return outputs, script


def run_score(folder: Path, reply: Callable[[Any], Answer]) -> Any:
    inputs, outputs = test_stage_score.paths(folder, test_stage_score.all_records())
    with scripted_server(listed(), reply=reply) as (endpoint, script):
        at = context(folder, endpoint.base_url)
        params = load_params(score_stage.STAGE, tree(), at.axes, where="params")
        score_stage.run(params, inputs, outputs, at)
    return outputs, script


def test_filter_judges_what_the_quality_stage_sees_and_reports_the_judge(tmp_path: Path) -> None:
    outputs, script = run_filter(tmp_path, knowing)
    reasons = [row.reason for row in read_rows(outputs.ledger, LedgerRow)]
    assert reasons == test_stage_filter.EXPECTED
    metrics = finite_or_null(outputs.metrics)
    assert metrics["filter/judge/agreement"] == 1.0
    assert metrics["filter/judge/false_accepts"] == metrics["filter/judge/unjudged_share"] == 0.0
    asked = {data_of(body)["question"] for _, body, _ in script.requests if body}
    assert {"Question 0?", "Question 2?"} <= asked
    assert "Question 3?" not in asked, "too short, so nobody need judge it"
    used = read_json(tmp_path / "scratch/facts.json")["endpoints"]
    assert {one["name"] for one in used} == {"judge"}


def test_a_second_attempt_asks_nobody_again(tmp_path: Path) -> None:
    run_filter(tmp_path, knowing)
    _, script = run_filter(tmp_path, knowing)
    assert [body for _, body, _ in script.requests if body] == []


def test_score_agrees_with_exact_match_where_the_judge_compares_text(tmp_path: Path) -> None:
    outputs, _ = run_score(tmp_path / "judge", knowing)
    exact, metrics = test_stage_score.score(tmp_path / "exact")
    judged = finite_or_null(outputs.metrics)
    assert judged["score/judge/agreement"] == 1.0
    for name in ("sft", "rl", "teacher"):
        key = f"eval/mhqa/{name}/avg_at_k"
        assert judged[key] == metrics[key]
    rows = read_rows(outputs.scores, ScoreRow)
    assert [row.score for row in rows] == [row.score for row in read_rows(exact.scores, ScoreRow)]


@pytest.mark.parametrize("stage", [run_filter, run_score], ids=["filter", "score"])
def test_a_judge_that_says_yes_to_all_stops_the_stage(tmp_path: Path, stage: Any) -> None:
    with pytest.raises(UserError, match=r"judge 'judge' agrees with 0\.0.* below judge\.asking"):
        stage(tmp_path, lambda _: verdict(True))
    with pytest.raises(UserError, match=r"agrees with 0\..*false rejects 1\.000"):
        stage(tmp_path / "no", lambda _: verdict(False))


@pytest.mark.parametrize("stage", [run_filter, run_score], ids=["filter", "score"])
def test_a_judge_that_breaks_after_its_calibration_stops_the_stage(
    tmp_path: Path, stage: Any
) -> None:
    def breaks(body: Any) -> Answer:
        is_ours = data_of(body)["question"].startswith("Question")
        return said("INCORRECT") if is_ours else knowing(body)

    with pytest.raises(UserError, match=r"max_unjudged_share\); mend the judge: .*'INCORRECT'"):
        stage(tmp_path, breaks)
    assert not (tmp_path / "out/metrics.json").exists()


def test_one_answer_without_a_verdict_has_no_score(tmp_path: Path) -> None:
    def shy(body: Any) -> Answer:
        data = data_of(body)
        return said("?") if data["question"] == "Question 7?" else knowing(body)

    tried = tree()
    tried["score"]["max_unjudged_share"] = 0.2
    inputs, outputs = test_stage_score.paths(tmp_path, test_stage_score.all_records())
    with scripted_server(listed(), reply=shy) as (endpoint, _):
        at = context(tmp_path, endpoint.base_url)
        score_stage.run(
            load_params(score_stage.STAGE, tried, at.axes, where="params"), inputs, outputs, at
        )
    rows = read_rows(outputs.scores, ScoreRow)
    lost = [row for row in rows if row.unscored == "unjudged"]
    assert {row.score for row in lost} == {None}
    assert len(lost) == sum(row.query_id == lost[0].query_id for row in rows)
    assert finite_or_null(outputs.metrics)["eval/mhqa/rl/avg_at_k"] == 1.0, "7 of 7, not 7 of 8"


def test_a_judge_must_be_named_and_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs a judge: set judge\.models"):
        run_filter(tmp_path, knowing, judge=None)
    with pytest.raises(UserError, match="does not say how endpoint 'other' is reached"):
        run_filter(tmp_path, knowing, judge=JUDGE | {"endpoint": "other"})
    with pytest.raises(UserError, match="does not serve 'another'"):
        run_filter(tmp_path, knowing, judge=JUDGE | {"name": "another"})


def changed(folder: Path, *settings: str) -> Params:
    path = folder / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text())
    set_params(path, list(settings))
    return read_params(path)


def requests() -> dict[str, list[str]]:
    outs = ["--out-accepted", "x", "--out-ledger", "x", "--out-metrics", "x"]
    paths = ["--queries", "x", "--trajectories", "x"]
    return {agent: ["filter", "--agent", agent, *paths, *outs] for agent in ("web", "mhqa")}


def test_the_judge_is_started_for_the_agents_that_ask_it(tmp_path: Path) -> None:
    judged = ("judge.models.web=" + QWEN, "agents.web.reward=llm_judge")
    params = changed(tmp_path, *judged, f"judge.models.mhqa={QWEN}")
    assert (params.asked_judge("web"), params.asked_judge("mhqa")) == ("qwen72b", None)
    found = {agent: _endpoints(tmp_path, parse_request(w)) for agent, w in requests().items()}
    assert [one.name for one in found["web"]] == ["qwen72b"]
    assert found["mhqa"] == ()
    keys = parse_request(requests()["web"]).stage.params_keys({"agent": "web"}).values()
    assert {"judge.asking", "judge.models.web"} <= set(keys)
    assert not any(key.startswith("endpoints") for key in keys)


def test_the_judges_gpus_count_with_the_stages_that_ask_it(tmp_path: Path) -> None:
    judged = changed(tmp_path, "judge.models.web=" + QWEN, "agents.web.reward=llm_judge")
    plain = read_params(ROOT / "params.yaml")

    def gpus(stage: str, params: Params) -> int:
        command = f"bin/submit {stage} --agent web --scale 7b"
        return _gpus(Cell(name=f"{stage}@web-7b", upstream=(), command=command), params)

    own = judged.scales["7b"].cluster.nodes * judged.scales["7b"].cluster.gpus_per_node
    served = judged.endpoints["qwen72b"].serve
    assert served is not None
    assert gpus("score", judged) == served.gpus == 4
    assert gpus("dapo", judged) == own + served.gpus
    assert gpus("dapo", plain) == gpus("evaluate", judged) == own


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["agents.web.reward=llm_judge"], r"reward llm_judge needs judge\.models\.web"),
        (
            ["judge.models.web={endpoint: nobody, name: a, revision: b}"],
            r"must be one of endpoints",
        ),
        (
            ["judge.models.web={endpoint: qwen72b, name: a, revision: b}"],
            r"both must say the same",
        ),
        (["judge.asking.prompt=equivalence_v0"], "equivalence_v1"),
        (["agents.web.reward=judge"], "llm_judge"),
    ],
)
def test_params_that_disagree_are_refused(
    tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        changed(tmp_path, *settings)
