"""The SFT stage: what it writes, and that it writes it again."""

import json
from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.jsonl import write_rows
from afm.params.scales import PromptStyle
from afm.training.model_folder import folder_hash
from stages import sft
from stages._stage import Context
from tests.unit.test_sft import params
from tests.unit.test_sft_data import AGENT
from tests.unit.toy_training import make_toy_model, trajectory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("models") / "toy")


def run(model: Path, out: Path, rows: int = 6, **changes: Any) -> dict[str, Any]:
    accepted = out / "accepted.jsonl"
    write_rows(accepted, [trajectory(number) for number in range(rows)])
    sft.run(
        sft.Params(
            agent=AGENT,
            prompt=PromptStyle("short"),
            sft=params(max_tokens=400, micro_batch_tokens=300, **changes),
        ),
        sft.Inputs(accepted=accepted, model=model),
        sft.Outputs(model=out / "model", steps=out / "steps.jsonl", metrics=out / "metrics.json"),
        Context(axes={"agent": "mhqa", "scale": "tiny"}, scratch=out / "scratch"),
    )
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_it_writes_model_steps_and_metrics(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run(model, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, metrics["sft/steps"] + 1))
    assert set(rows[0]) >= {"loss", "lr", "grad_norm", "tokens", "trained_tokens"}
    assert metrics["sft/examples"] == 6
    assert metrics["sft/dropped_too_long"] == 0
    assert 0 < metrics["sft/trained_share"] < 1
    assert metrics["sft/padding_share"] == pytest.approx(0, abs=1e-12)
    tokenizer = "tokenizer.json"
    assert (tmp_path / "model" / tokenizer).read_bytes() == (model / tokenizer).read_bytes()
    assert folder_hash(model) in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "⟦<think>I search.</think>" in capsys.readouterr().err


def test_two_runs_give_the_same_bytes(model: Path, tmp_path: Path) -> None:
    for name in "ab":
        run(model, tmp_path / name)
    assert folder_hash(tmp_path / "a" / "model") == folder_hash(tmp_path / "b" / "model")
    assert folder_hash(tmp_path / "a" / "model") != folder_hash(model)
    for file in ("steps.jsonl", "metrics.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_finished_run_runs_again_from_its_last_checkpoint(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path)
    first = folder_hash(tmp_path / "model")
    record = (tmp_path / "steps.jsonl").read_bytes()
    run(model, tmp_path)
    assert folder_hash(tmp_path / "model") == first
    assert (tmp_path / "steps.jsonl").read_bytes() == record


def test_values_of_the_agent_hold(model: Path, tmp_path: Path) -> None:
    metrics = run(model, tmp_path, by_agent={"mhqa": {"epochs": 0.5}, "web": {"epochs": 3.0}})
    assert metrics["sft/epochs"] == 0.5


def test_no_row_is_an_error_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no example is left"):
        run(model, tmp_path, rows=0)
    assert not (tmp_path / "model").exists()
