"""The base stage: what it writes, and that it writes it again."""

import json
from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.jsonl import write_rows
from afm.model_files import load_tokenizer
from afm.training import memorise
from afm.training.model_folder import folder_hash
from stages import base
from stages._stage import Context
from tests.unit.test_memorise import CORPUS, FACTS, GOLD, eval_query, params
from tests.unit.toy_training import make_toy_model


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> base.Inputs:
    root = tmp_path_factory.mktemp("inputs")
    write_rows(root / "queries" / "facts.jsonl", FACTS)
    write_rows(root / "queries" / "held_out.jsonl", [GOLD])
    write_rows(root / "queries" / "eval.jsonl", [eval_query()])
    write_rows(root / "corpus.jsonl", CORPUS)
    return base.Inputs(
        shipped=make_toy_model(root / "toy"),
        queries=root / "queries",
        corpus=root / "corpus.jsonl",
    )


def run(inputs: base.Inputs, out: Path, agent: str = "mhqa", **changes: Any) -> dict[str, Any]:
    base.run(
        base.Params(base=params(**changes)),
        inputs,
        base.Outputs(model=out / "model", metrics=out / "metrics.json"),
        Context(axes={"agent": agent, "scale": "tiny"}, scratch=out / "scratch"),
    )
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_a_tuned_model_and_its_metrics(inputs: base.Inputs, tmp_path: Path) -> None:
    metrics = run(inputs, tmp_path)
    assert metrics["base/memorised_facts"] == 3
    assert (metrics["base/memorised_passages"], metrics["base/left_out_passages"]) == (2, 3)
    assert metrics["base/memorised_correct_share"] > 0.5
    assert metrics["base/memorised_correct_share"] > metrics["base/other_correct_share"]
    assert metrics["base/parameters"] > 10_000
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert folder_hash(inputs.shipped) in card and "60 steps" in card


def test_two_runs_give_the_same_bytes(inputs: base.Inputs, tmp_path: Path) -> None:
    for name in "ab":
        run(inputs, tmp_path / name, memorise_steps=3)
    assert folder_hash(tmp_path / "a" / "model") == folder_hash(tmp_path / "b" / "model")
    metrics = [(tmp_path / name / "metrics.json").read_bytes() for name in "ab"]
    assert metrics[0] == metrics[1]


def test_without_steps_the_model_is_the_shipped_one_and_undefined_is_null(
    inputs: base.Inputs, tmp_path: Path
) -> None:
    metrics = run(inputs, tmp_path, agent="code", by_agent={"code": {"memorise_steps": 0}})
    weights = "model.safetensors"
    assert (tmp_path / "model" / weights).read_bytes() == (inputs.shipped / weights).read_bytes()
    assert metrics["base/memorised_facts"] == 0
    assert metrics["base/memorised_correct_share"] is None


def test_no_passage_about_a_held_out_entity_is_learnt(
    inputs: base.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[memorise.Plan] = []
    make_plan = memorise.make_plan

    def kept_plan(*arguments: Any) -> memorise.Plan:
        plans.append(make_plan(*arguments))
        return plans[0]

    monkeypatch.setattr(memorise, "make_plan", kept_plan)
    run(inputs, tmp_path, memorise_steps=3, passage_share=0.5, question_share=0.1)
    tokenizer = load_tokenizer(inputs.shipped)
    examples = [example for batch in plans[0].batches for example in batch]
    texts = [tokenizer.decode(example.input_ids) for example in examples]
    assert any(text.startswith("Gold Coast is") for text in texts)
    assert any(text.startswith("Hamlet is") for text in texts)
    learnt = [p.title for p in CORPUS for text in texts if text.startswith(p.text)]
    assert set(learnt) == {"Gold Coast", "Hamlet"}


def test_an_agent_without_passages_may_learn_none(inputs: base.Inputs, tmp_path: Path) -> None:
    write_rows(tmp_path / "corpus.jsonl", [])
    write_rows(tmp_path / "queries" / "facts.jsonl", FACTS)
    write_rows(tmp_path / "queries" / "held_out.jsonl", [])
    write_rows(tmp_path / "queries" / "eval.jsonl", [])
    bare = base.Inputs(
        shipped=inputs.shipped, queries=tmp_path / "queries", corpus=tmp_path / "corpus.jsonl"
    )
    metrics = run(bare, tmp_path, agent="code", memorise_steps=2, passage_share=0.0)
    assert (metrics["base/memorised_passages"], metrics["base/left_out_passages"]) == (0, 0)
    with pytest.raises(UserError, match=r"base\.passage_share is above 0 .* set it to 0"):
        run(bare, tmp_path / "x", agent="code", memorise_steps=2)


def test_no_fact_to_memorise_is_an_error(inputs: base.Inputs, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"memorise_share 0.0 of 6 facts"):
        run(inputs, tmp_path, memorise_share=0.0)
