"""From checkpoint shards to a model folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from afm.errors import TrainerError
from afm.training.verl.export import EMBEDDING, HEAD, export_model, merge_shards, untied_copy

MODEL = Path("models/tiny-base")


def checkpoint(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    actor = folder / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    torch.save(weights, actor / "model_world_size_1_rank_0.pt")
    return folder


def trained() -> dict[str, torch.Tensor]:
    """The weights of the base model, all a little larger; tied, as verl saves them: under both names."""
    weights = {
        name: tensor + 0.5 for name, tensor in load_file(MODEL / "model.safetensors").items()
    }
    return weights | {HEAD: weights[EMBEDDING]}


def test_the_export_is_fp32_tied_and_has_the_tokenizer(tmp_path: Path) -> None:
    weights = trained()
    out = tmp_path / "out"
    export_model(checkpoint(tmp_path / "c", weights), MODEL, out, card="# card\n", dtype="float32")
    saved = load_file(out / "model.safetensors")
    assert HEAD not in saved
    for name, tensor in saved.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, weights[name]), name
    assert (out / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()
    assert (out / "README.md").read_text() == "# card\n"
    assert not list(tmp_path.glob(".*"))


def test_a_missing_weight_is_an_error(tmp_path: Path) -> None:
    weights = trained()
    del weights["model.norm.weight"]
    with pytest.raises(TrainerError, match=r"model\.norm\.weight"):
        export_model(
            checkpoint(tmp_path / "c", weights), MODEL, tmp_path / "out", card="", dtype="float32"
        )
    assert not (tmp_path / "out").exists()


def test_a_missing_rank_is_an_error(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", trained())
    (folder / "actor" / "fsdp_config.json").write_text(
        json.dumps({"FSDP_version": 2, "world_size": 2})
    )
    with pytest.raises(TrainerError, match="rank_0"):
        merge_shards(folder / "actor")


def test_the_served_copy_has_a_head_of_its_own(tmp_path: Path) -> None:
    untied_copy(MODEL, tmp_path / "served")
    saved = load_file(tmp_path / "served" / "model.safetensors")
    assert torch.equal(saved[HEAD], saved[EMBEDDING])
    assert (
        json.loads((tmp_path / "served" / "config.json").read_text())["tie_word_embeddings"]
        is False
    )
    assert json.loads((MODEL / "config.json").read_text())["tie_word_embeddings"] is True
