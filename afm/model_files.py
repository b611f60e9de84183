"""Where a model's files are, and its tokenizer: all that who serves or asks a model needs, and nothing of training."""

from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_json
from afm.types import Row

MANIFEST = "manifest.json"
"""Stands in for the weights of a model that stays in the hub cache."""


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
