"""A result is whole or not there, and what is published is never half old and half new."""

import os
import stat
from pathlib import Path

import pytest

from afm.errors import UserError
from flows.hashing import Hasher
from flows.store import Manifest, Store

OUTPUTS = {"rows": Path("data/x/rows.jsonl"), "model": Path("data/models/m")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".results", Hasher(tmp_path / "memory"))


def fill(store: Store, text: str = "one") -> None:
    store.begin("id", OUTPUTS)
    plan = store.plan("id", OUTPUTS)
    plan["rows"].write_text(text)
    (plan["model"] / "deep").mkdir(parents=True)
    (plan["model"] / "deep" / "w.bin").write_text("w")


def sealed(store: Store) -> Manifest:
    fill(store)
    return store.seal("id", OUTPUTS, lambda manifest: {"outs": len(manifest.outs)})


def targets(root: Path) -> dict[str, Path]:
    return {name: root / path for name, path in OUTPUTS.items()}


def test_only_a_sealed_result_is_found(store: Store) -> None:
    fill(store)
    assert store.read("id") is None
    manifest = store.seal("id", OUTPUTS, lambda _: {})
    assert store.read("id") == manifest
    assert not store.partial("id").exists()
    assert manifest.outs["model"].md5.endswith(".dir")
    assert set(manifest.outs["model"].files) == {"deep/w.bin"}


def test_a_missing_output_is_not_sealed(store: Store) -> None:
    store.begin("id", OUTPUTS)
    store.plan("id", OUTPUTS)["rows"].write_text("x")
    with pytest.raises(UserError, match="model"):
        store.seal("id", OUTPUTS, lambda _: {})
    assert store.read("id") is None


def test_publishing_links_read_only_files(store: Store, tmp_path: Path) -> None:
    manifest = sealed(store)
    store.publish(manifest, targets(tmp_path))
    rows = tmp_path / OUTPUTS["rows"]
    assert rows.read_text() == "one"
    assert rows.stat().st_ino == (store.result("id") / "rows" / "rows.jsonl").stat().st_ino
    assert stat.S_IMODE(rows.stat().st_mode) == 0o444
    assert (tmp_path / OUTPUTS["model"] / "deep" / "w.bin").read_text() == "w"


def test_publishing_replaces_and_leaves_no_siblings(store: Store, tmp_path: Path) -> None:
    manifest = sealed(store)
    wanted = targets(tmp_path)
    wanted["rows"].parent.mkdir(parents=True)
    wanted["rows"].write_text("old")
    wanted["model"].mkdir(parents=True)
    (wanted["model"] / "old.bin").write_text("old")
    for _ in range(2):
        store.publish(manifest, wanted)
        assert [path.name for path in wanted["rows"].parent.iterdir()] == ["rows.jsonl"]
        assert [path.name for path in wanted["model"].parent.iterdir()] == ["m"]
        assert [path.name for path in wanted["model"].iterdir()] == ["deep"]


def test_a_kind_that_changed_is_replaced(store: Store, tmp_path: Path) -> None:
    manifest = sealed(store)
    wanted = targets(tmp_path)
    wanted["rows"].mkdir(parents=True)
    wanted["model"].parent.mkdir(parents=True)
    wanted["model"].write_text("a file before")
    store.publish(manifest, wanted)
    assert wanted["rows"].is_file()
    assert wanted["model"].is_dir()


@pytest.mark.parametrize("harm", ["change", "remove", "add"])
def test_damage_is_found_and_named(store: Store, harm: str) -> None:
    manifest = sealed(store)
    assert store.damage(manifest) == []
    weights = store.result("id") / "model" / "m" / "deep" / "w.bin"
    if harm == "change":
        weights.chmod(0o644)
        weights.write_text("v")
    elif harm == "remove":
        weights.unlink()
    else:
        weights.with_name("more.bin").write_text("x")
    name = "more.bin" if harm == "add" else "w.bin"
    assert store.damage(manifest) == [f"model/m/deep/{name}"]


def test_beginning_again_drops_what_was_half_written(store: Store) -> None:
    fill(store)
    store.begin("id", OUTPUTS)
    assert not store.plan("id", OUTPUTS)["rows"].exists()


def test_other_outputs_than_the_results_are_refused(store: Store, tmp_path: Path) -> None:
    manifest = sealed(store)
    with pytest.raises(UserError, match="has outputs"):
        store.publish(manifest, {"rows": tmp_path / "rows"})


def test_publishing_copies_where_links_cannot_reach(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = sealed(store)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store.publish(manifest, targets(tmp_path))
    assert (tmp_path / OUTPUTS["rows"]).read_text() == "one"
