"""The folder that a server reads a model from: the model itself, or an untied copy of it.

vLLM's weight reload leaves a tied output head as it was (measured on its CPU build), so every model is served with a
head of its own; all stages then sample from the same arithmetic.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_json, write_json

HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"
"""Name of the input embeddings in Qwen2, Llama and their relatives."""
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEAD_FILE = "lm_head.safetensors"


def served_folder(model: Path, copy: Path) -> Path:
    """Return the folder to serve: `model`, or `copy` filled with links to it and an output head of its own.

    Raises:
        UserError: `model` is no model folder, or its embeddings have an unknown name.
    """
    if not (model / "config.json").exists():
        raise UserError(f"{model} is no model folder: it has no config.json")
    config = read_json(model / "config.json")
    files = weight_files(model)
    if not config.get("tie_word_embeddings", HEAD not in files):
        return model
    if EMBEDDINGS not in files:
        raise UserError(
            f"{model} ties its embeddings but has no {EMBEDDINGS}; it has {sorted(files)[:3]} ..."
        )
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for path in model.iterdir():
        if path.name not in ("config.json", _INDEX):
            (copy / path.name).symlink_to(path.resolve())
    _write_head(model / files[EMBEDDINGS], copy / _HEAD_FILE)
    write_json(copy / "config.json", config | {"tie_word_embeddings": False})
    write_json(copy / _INDEX, {"metadata": {}, "weight_map": files | {HEAD: _HEAD_FILE}})
    return copy


def weight_files(model: Path) -> dict[str, str]:
    """Map each tensor of a model folder to the name of its file.

    Raises:
        UserError: the folder has no safetensors weights.
    """
    if (model / _INDEX).exists():
        files: dict[str, str] = read_json(model / _INDEX)["weight_map"]
        return files
    if (model / _SINGLE).exists():
        names = _header(model / _SINGLE)[0]
        return {name: _SINGLE for name in names if name != "__metadata__"}
    raise UserError(f"{model} has neither {_SINGLE} nor {_INDEX}")


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Read a safetensors file's header; returns it and where the data starts [bytes]."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(size)), 8 + size


def _write_head(source: Path, target: Path) -> None:
    """Copy the embeddings' bytes under the head's name: no torch, which takes seconds to import; any dtype."""
    header, start = _header(source)
    entry = header[EMBEDDINGS]
    first, last = entry["data_offsets"]
    own = {"__metadata__": {"format": "pt"}, HEAD: entry | {"data_offsets": [0, last - first]}}
    text = json.dumps(own).encode()
    text += b" " * (-len(text) % 8)
    with source.open("rb") as stream, target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        stream.seek(start + first)
        out.write(stream.read(last - first))
