"""From verl's checkpoints to Hugging Face folders, and the untied copy that a CPU server needs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm.errors import TrainerError, UserError
from afm.jsonl import read_json, write_json

if TYPE_CHECKING:
    import torch

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


def copy_without_weights(model: Path, out: Path) -> None:
    """Copy config, tokenizer and chat template of a model folder."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns(*_WEIGHTS), dirs_exist_ok=True)


def untied_copy(model: Path, out: Path) -> None:
    """Make a copy of a model whose output head is a tensor of its own.

    vLLM on a CPU keeps the old head on a reload when it is tied to the embedding (measured: log-probabilities off by
    0.5 to 0.85), so the rollout server always serves untied.
    """
    from safetensors.torch import load_file

    if out.exists():
        shutil.rmtree(out)
    copy_without_weights(model, out)
    config = read_json(out / "config.json")
    write_json(out / "config.json", config | {"tie_word_embeddings": False})
    weights: dict[str, torch.Tensor] = {}
    for shard in _shards(model):
        weights |= load_file(shard)
    save_untied(weights, out)


def save_untied(weights: Mapping[str, "torch.Tensor"], folder: Path) -> None:
    """Write fp32 weights with a head of their own as one file, atomically."""
    import torch
    from safetensors.torch import save_file

    full = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in weights.items()}
    full.setdefault(HEAD, full[EMBEDDING])
    clones = {name: tensor.clone().contiguous() for name, tensor in full.items()}
    sibling = folder / ".model.safetensors.tmp"
    save_file(clones, sibling, metadata={"format": "pt"})
    sibling.replace(folder / "model.safetensors")


def export_model(checkpoint: Path, model: Path, out: Path, *, card: str, dtype: str) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, in one go; tied where the input was.

    Args:
        checkpoint: verl's folder of one step.
        model: Folder of the model that training started from: config and tokenizer come from it.
        out: Folder to write.
        card: Text of its `README.md`.
        dtype: `float32` or `bfloat16`.

    Raises:
        TrainerError: the checkpoint does not hold exactly the weights of the input model.
    """
    import torch

    from afm.training.model_folder import load_model, save_model

    trained = load_model(model, torch.device("cpu"))
    try:
        trained.load_state_dict(merge_shards(checkpoint / "actor"))
    except RuntimeError as error:
        raise TrainerError(f"{checkpoint} holds other weights than {model}: {error}") from error
    save_model(trained, out, tokenizer_from=model, card=card, dtype=dtype)


def merge_shards(folder: Path) -> dict[str, "torch.Tensor"]:
    """Join the ranks' shards of a checkpoint (FSDP2 shards dimension 0; one rank holds everything).

    Raises:
        TrainerError: a rank is missing.
    """
    import torch
    import torch.distributed.tensor

    world_size = int(json.loads((folder / "fsdp_config.json").read_text())["world_size"])
    ranks = []
    for rank in range(world_size):
        path = folder / f"model_world_size_{world_size}_rank_{rank}.pt"
        if not path.exists():
            raise TrainerError(f"checkpoint lacks {path}")
        ranks.append(torch.load(path, map_location="cpu", weights_only=False))
    return {name: _join([rank[name] for rank in ranks]) for name in ranks[0]}


def _join(parts: list[Any]) -> "torch.Tensor":
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(parts[0], DTensor):
        return torch.as_tensor(parts[0])
    placement: Any = parts[0].placements[-1]
    if not placement.is_shard():
        return torch.as_tensor(parts[0]._local_tensor)
    return torch.cat([part._local_tensor for part in parts], dim=placement.dim)


def _shards(model: Path) -> list[Path]:
    shards = sorted(model.glob("*.safetensors"))
    if not shards:
        raise UserError(f"no *.safetensors in {model}: the policy must be a Hugging Face folder")
    return shards
