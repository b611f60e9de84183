"""`afm judge`: calibration on demand, and the scores that another judge would change."""

import json
from pathlib import Path
from typing import Any

import pytest

from afm.jsonl import write_rows
from flows.cli import main
from flows.commands.params import set_params
from stages._stage import Context
from stages.score import run as score
from tests.unit import test_stage_score
from tests.unit.fake_server import MODEL, Answer, listed, scripted_server
from tests.unit.judge_world import data_of, knowing, verdict
from tests.unit.synthetic import ROOT

CELL = ("--agent", "mhqa", "--scale", "tiny")


def checkout(folder: Path, base_url: str) -> None:
    """Write params with the endpoint `strict` and stored scores of the cell mhqa-tiny."""
    (folder / "dvc.yaml").write_text("stages: {}\n")
    path = folder / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text())
    judge = {
        **{"model": {"name": MODEL, "revision": "r"}, "base_url": base_url},
        **{"api_key_variable": None, "timeout_s": 5.0, "concurrency": 8, "max_tries": 2},
        **{"max_total_tokens": None, "prompt_price": 0.0, "completion_price": 0.0},
    }
    set_params(path, [f"endpoints={json.dumps({'strict': judge})}"])
    inputs, outputs = test_stage_score.paths(folder / "made", test_stage_score.all_records())
    axes = {"agent": "mhqa", "scale": "tiny"}
    score(test_stage_score.PARAMS, inputs, outputs, Context(axes=axes, scratch=folder))
    scores = folder / "data/score/mhqa-tiny/scores.jsonl"
    scores.parent.mkdir(parents=True)
    outputs.scores.rename(scores)
    write_rows(folder / "data/prepare/mhqa/queries/eval.jsonl", test_stage_score.QUERIES)


def afm(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


def lenient(body: Any) -> Answer:
    """Take Bergen for right as well, where it answers one question."""
    data = data_of(body)
    near = data["candidate"] == "Bergen" and data["references"] == ["Oslo"]
    return verdict(True) if near and data["question"] == "Question 5?" else knowing(body)


def test_compare_lists_the_rows_that_flip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with scripted_server(listed(), reply=lenient) as (endpoint, _):
        checkout(tmp_path, endpoint.base_url)
        capsys.readouterr()
        assert afm("judge", "compare", "exact_match", "strict", *CELL, "--json") == 1
        found = json.loads(capsys.readouterr().out)
        assert afm("judge", "compare", "exact_match", "exact_match", *CELL) == 0
        assert "0 of" in capsys.readouterr().out
        assert afm("judge", "compare", "strict", "exact_match", *CELL) == 1
    table = capsys.readouterr().out
    asked = test_stage_score.QUERIES[5].query_id
    flips = {(flip["variant"], flip["query_id"]) for flip in found["flips"]}
    assert flips == {("base", asked), ("sft", asked)}
    assert len(found["flips"]) == 6
    assert all((flip["first"], flip["second"]) == (0.0, 1.0) for flip in found["flips"])
    assert found["means"]["sft"] == [4 / 8, 5 / 8]
    assert found["means"]["rl"] == [7 / 8, 7 / 8]
    assert found["unjudged"] == [0, 0]
    assert "1 -> 0: 'Bergen' for ['Oslo']" in table
    assert table.splitlines()[-1].startswith("6 of 80 answers change")


def test_compare_wants_judges_and_scores_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkout(tmp_path, "http://127.0.0.1:1/v1")
    assert afm("judge", "compare", "exact_match", "nobody", *CELL) == 2
    assert "no judge 'nobody': endpoints has ['strict']" in capsys.readouterr().err
    assert afm("judge", "compare", "exact_match", "math", "--agent", "web", "--scale", "7b") == 2
    assert "no such file" in capsys.readouterr().err


def test_calibrate_prints_how_good_a_judge_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with scripted_server(listed(), reply=knowing) as (endpoint, _):
        checkout(tmp_path, endpoint.base_url)
        capsys.readouterr()
        assert afm("judge", "calibrate", "strict") == 0
    assert "agreement       1.000" in capsys.readouterr().out
    monkeypatch.setattr("flows.commands.judge.home_of", lambda _: tmp_path / "other")
    with scripted_server(listed(), reply=lambda _: verdict(False)) as (endpoint, _):
        set_params(tmp_path / "params.yaml", [f"endpoints.strict.base_url={endpoint.base_url}"])
        assert afm("judge", "calibrate", "strict", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["false_accepts"], found["false_rejects"]) == (False, 0.0, 1.0)
