"""Model folders in Hugging Face form: loading, and writing with the same bytes every time."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_json
from afm.training.device import check_memory
from afm.training.packing import register_attention
from afm.types import Row

MANIFEST = "manifest.json"
"""Stands in for the weights of a model that stays in the hub cache."""
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf")
_NOT_CARRIED = (*_WEIGHT_FILES, "config.json", "README.md", "recipe.json", MANIFEST)
"""Files of a source model that do not pass to the model trained from it."""


class ManifestFile(Row):
    """One file of a pinned model."""

    path: str
    size: int
    """[bytes]"""
    sha256: str


class Manifest(Row):
    """A pinned revision of a hub model that lies in the local cache."""

    repo_id: str
    revision: str
    """Commit on the hub."""
    licence: str
    files: tuple[ManifestFile, ...]


def resolve_model(folder: Path) -> Path:
    """Return where a model's files are: the folder, or the snapshot that its manifest names.

    Raises:
        UserError: the snapshot is not in the cache, or a file of it has another size.
    """
    if not (folder / MANIFEST).exists():
        return folder
    manifest = Manifest.model_validate(read_json(folder / MANIFEST))
    snapshot = cached_snapshot(manifest.repo_id, manifest.revision)
    for file in manifest.files:
        path = snapshot / file.path
        if not path.exists() or path.stat().st_size != file.size:
            raise UserError(
                f"{path} is missing or is not {file.size} bytes long as {folder / MANIFEST} says; "
                f"fetch it again: {fetch_command(manifest.repo_id, manifest.revision)}"
            )
    return snapshot


def cached_snapshot(repo_id: str, revision: str) -> Path:
    """Return the folder of a pinned revision in the local hub cache, without any network.

    Raises:
        UserError: it is not there; the message says how to fetch it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"{repo_id} at {revision} is not in the local hub cache; "
            f"on a machine with network: {fetch_command(repo_id, revision)}"
        ) from error


def fetch_command(repo_id: str, revision: str) -> str:
    """Return the shell command that brings a pinned revision into the cache."""
    return f"hf download {repo_id} --revision {revision}"


def load_tokenizer(folder: Path) -> Any:
    """Load the fast tokenizer of a model folder.

    Raises:
        UserError: it has no chat template, or is a slow one, without character offsets.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    if not tokenizer.is_fast:
        raise UserError(f"{folder} has a slow tokenizer; masks need the offsets of a fast one")
    if not tokenizer.chat_template:
        raise UserError(f"{folder} has no chat template; add chat_template.jinja to it")
    return tokenizer


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
    """Load a causal language model in fp32 for training with packed attention.

    Raises:
        UserError: the folder holds no model, or the model cannot fit the GPU.
    """
    import torch
    from transformers import AutoModelForCausalLM

    check_memory(count_parameters(folder), device)
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation=register_attention()
    )
    if device.type == "cuda":
        model.gradient_checkpointing_enable()  # type: ignore[no-untyped-call]
    return model.to(device)


def save_model(model: Any, out: Path, *, tokenizer_from: Path, card: str, dtype: str) -> None:
    """Write a model folder in one go: weights, config, tokenizer and chat template, card.

    Args:
        model: The trained model; its weights are cast to `dtype`.
        out: Target folder.
        tokenizer_from: Model folder whose tokenizer and other small files are copied byte for byte.
        card: Text of `README.md`.
        dtype: `float32` or `bfloat16`.
    """
    import torch

    def fill(folder: Path) -> None:
        model.to(getattr(torch, dtype)).save_pretrained(str(folder))
        for file in sorted(tokenizer_from.iterdir()):
            carried = file.is_file() and not any(file.match(name) for name in _NOT_CARRIED)
            if carried and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        (folder / "README.md").write_text(card, encoding="utf-8")

    replace_folder(out, fill)


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
