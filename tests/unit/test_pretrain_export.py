"""The shipped base model: its folder agrees with the code, its card with its recipe."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from afm.training.pretrain_model import Recipe, build_model
from afm.training.pretrain_text.card import model_card, write_card
from afm.training.pretrain_text.corpus import ENGLISH
from afm.training.pretrain_text.export import export
from afm.training.tokenizer import train_tokenizer

SHIPPED = Path(__file__).parents[2] / "models" / "tiny-base"
MOST_BYTES = 10_000_000
RESULT = {
    "step": 12,
    "tokens": 34567,
    "trained_tokens": 8901,
    "hours": 0.25,
    "held_out": {"answer_1hop": 0.9, "arithmetic": 0.1},
}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((SHIPPED / "recipe.json").read_text(encoding="utf-8"))
    return content


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_shipped_card_and_recipe_name_the_weights(shipped: dict[str, Any]) -> None:
    digest = sha256(SHIPPED / "model.safetensors")
    assert shipped["result"]["sha256"] == digest
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert f"| sha256 of `model.safetensors` | `{digest}` |" in card


def test_shipped_card_names_every_figure(shipped: dict[str, Any]) -> None:
    rows = (SHIPPED / "README.md").read_text(encoding="utf-8").splitlines()
    figures = shipped["result"]["held_out"]
    assert len(figures) > 10
    assert {f"| {name} | {value} |" for name, value in figures.items()} <= set(rows)


def test_shipped_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < MOST_BYTES


def test_shipped_recipe_is_that_of_the_code(shipped: dict[str, Any]) -> None:
    recipe = dict(shipped["recipe"])
    assert set(recipe.pop("versions")) >= {"python", "torch", "transformers", "tokenizers"}
    assert recipe == json.loads(json.dumps(dataclasses.asdict(Recipe())))


def test_card_states_what_a_reader_needs() -> None:
    recipe = {**dataclasses.asdict(Recipe()), "seed": 7}
    card = model_card(recipe, {**RESULT, "sha256": "abc", "parameters": 1234})
    for line in (
        "license: apache-2.0",
        "| steps | 12 of 3,000 |",
        "| tokens | 34,567, of them trained 8,901 |",
        "| wall time | 0.25 h on a CPU |",
        "| seed | 7 |",
        "| sha256 of `model.safetensors` | `abc` |",
        "| answer_1hop | 0.9 |",
    ):
        assert line in card.splitlines()
    assert "fewer than half of the held-out cases: `arithmetic`." in card
    assert "26 kinds" in card
    assert "`Lead actor`" in card
    assert "\n## Limits\n" in card


def test_export_writes_a_folder_that_agrees_with_itself(tmp_path: Path) -> None:
    recipe = Recipe(hidden_size=24, num_layers=1, num_heads=2, intermediate_size=32, vocab_size=400)
    tokenizer = train_tokenizer(ENGLISH * 20, vocab_size=400)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old.txt").write_text("of an earlier export")
    model = build_model(recipe)
    export(model, tokenizer, folder, recipe=dataclasses.asdict(recipe), result=RESULT)
    written = json.loads((folder / "recipe.json").read_text())
    assert written["result"]["sha256"] == sha256(folder / "model.safetensors")
    assert written["result"]["parameters"] == model.num_parameters()
    card = (folder / "README.md").read_bytes()
    assert written["result"]["sha256"].encode() in card
    write_card(folder)
    assert (folder / "README.md").read_bytes() == card
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not (folder / "old.txt").exists()
