"""Model folders in Hugging Face form: loading for training, and writing with the same bytes every time."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.model_files import MANIFEST
from afm.training.device import check_memory
from afm.training.ranks import current_ranks

_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf")
_NOT_CARRIED = (*_WEIGHT_FILES, "config.json", "README.md", "recipe.json", MANIFEST)
"""Files of a source model that do not pass to the model trained from it."""


def count_parameters(folder: Path) -> int:
    """Count the parameters of a model from its config alone; tied weights count once.

    Raises:
        UserError: the folder holds no model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is no model folder: it has no config.json")
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(str(folder))
        empty = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return int(empty.num_parameters())


def load_model(folder: Path, device: Any) -> Any:
    """Load a causal language model in fp32 for training with packed attention; among ranks, this one's shard.

    Raises:
        UserError: the folder holds no model, or the model cannot fit the GPUs.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from afm.training.packing import register_attention
    from afm.training.sharded import load_sharded

    ranks = current_ranks()
    check_memory(count_parameters(folder), device, ranks.size)
    if ranks.size > 1:
        return load_sharded(folder, device)
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation=register_attention()
    )
    if device.type == "cuda":
        model.gradient_checkpointing_enable()  # type: ignore[no-untyped-call]
    return model.to(device)


def save_model(model: Any, out: Path, *, tokenizer_from: Path, card: str, dtype: str) -> None:
    """Write a model folder in one go: weights, config, tokenizer and chat template, card.

    Among ranks all must call it; the first one writes.

    Args:
        model: The trained model; its weights are cast to `dtype`.
        out: Target folder.
        tokenizer_from: Model folder whose tokenizer and other small files are copied byte for byte.
        card: Text of `README.md`.
        dtype: `float32` or `bfloat16`.
    """
    import torch

    from afm.training.sharded import whole_weights

    ranks = current_ranks()
    model.to(getattr(torch, dtype))
    weights = whole_weights(model, keep=ranks.is_first) if ranks.size > 1 else None

    def fill(folder: Path) -> None:
        model.save_pretrained(str(folder), state_dict=weights)
        for file in sorted(tokenizer_from.iterdir()):
            carried = file.is_file() and not any(file.match(name) for name in _NOT_CARRIED)
            if carried and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        (folder / "README.md").write_text(card, encoding="utf-8")

    if ranks.is_first:
        replace_folder(out, fill)
    ranks.wait()


def replace_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """Fill a sibling folder, then rename it to `out`, whose earlier content goes."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    fill(partial)
    for file in partial.rglob("*"):
        if file.is_file():
            file.chmod(0o644)  # safetensors makes its files private
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)


def file_hash(path: Path) -> str:
    """Return the sha256 of a file [hex]."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_hash(folder: Path) -> str:
    """Return the sha256 over names and contents of the files of a folder [hex]."""
    lines = [
        f"{file_hash(file)}  {file.relative_to(folder).as_posix()}\n"
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
