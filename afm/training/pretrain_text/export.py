"""Write the model as a Hugging Face folder with its card and its recipe."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from afm.training.pretrain_text.card import write_card
from afm.training.tokenizer import save_tokenizer


def export(
    model: Qwen2ForCausalLM,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    recipe: Mapping[str, object],
    result: Mapping[str, object],
) -> None:
    """Write model, tokenizer, recipe and card to ``folder``, replacing it in one go.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: Target; its earlier content is removed.
        recipe: All that fixes the weights: sizes, rates, seed, versions.
        result: What came out: steps, tokens, hours, held-out figures.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    save_tokenizer(tokenizer, partial, max_length=model.config.max_position_embeddings)
    digest = hashlib.sha256((partial / "model.safetensors").read_bytes()).hexdigest()
    outcome = {**result, "sha256": digest, "parameters": model.num_parameters()}
    _write_json(partial / "recipe.json", {"recipe": dict(recipe), "result": outcome})
    write_card(partial)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
