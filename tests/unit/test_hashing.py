"""Hashes must be DVC's own, and remembered only while a file is unchanged."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm.errors import UserError
from flows.hashing import IGNORED, Hasher, listing_md5
from flows.memory import Memory
from tests.support.toy import REPO


def dvc_md5(path: Path) -> str:
    """Ask DVC's own hashing."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.db import HashFileDB
    from dvc_objects.fs import LocalFileSystem, MemoryFileSystem

    fs = LocalFileSystem()
    odb = HashFileDB(MemoryFileSystem(), "memory://odb")
    _, _, built = build(odb, str(path), fs, "md5", dry_run=True)
    return str(built.hash_info.value)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name, text in {
        "a.txt": "x",
        "b/c.txt": "line\r\nline",
        "b/ü 漢.bin": "é",
        "b.txt": "",
        "B/d": "y",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (folder / "empty").mkdir()
    return folder


def test_a_file_and_a_folder_hash_as_in_dvc(tree: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path / "memory")
    for path in (tree, tree / "b", tree / "b" / "c.txt", tree / "b.txt"):
        assert hasher.md5(path) == dvc_md5(path)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1),
        st.text(min_size=1),
    )
)
def test_any_listing_hashes_as_in_dvc(files: dict[str, str]) -> None:
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree

    theirs = Tree()
    for name, md5 in files.items():
        theirs.add((name,), None, HashInfo("md5", md5))
    theirs.digest()
    assert listing_md5(files) == theirs.oid


def test_what_dvc_ignores_is_ignored(tree: Path, tmp_path: Path) -> None:
    before = Hasher(tmp_path / "memory").md5(tree)
    (tree / "b" / "__pycache__").mkdir()
    (tree / "b" / "__pycache__" / "x.pyc").write_text("x")
    assert Hasher(tmp_path / "memory").md5(tree) == before
    listed = {line.rstrip("/") for line in (REPO / ".dvcignore").read_text().split()}
    assert listed <= IGNORED, "a folder in .dvcignore must be in IGNORED too"


def test_a_big_file_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.hashing.REMEMBER_BYTES", 4)
    big, memory = tmp_path / "big", tmp_path / "memory"
    big.write_text("12345")
    first = Hasher(memory)
    md5 = first.md5(big)
    first.save()
    monkeypatch.setattr("flows.hashing.file_md5", lambda path: "read again")
    assert Hasher(memory).md5(big) == md5
    os.utime(big, ns=(1, 1))
    assert Hasher(memory).md5(big) == "read again"


def test_a_link_in_another_folder_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.hashing.REMEMBER_BYTES", 4)
    (tmp_path / "big").write_text("12345")
    hasher = Hasher(tmp_path / "memory")
    md5 = hasher.md5(tmp_path / "big")
    (tmp_path / "other").mkdir()
    os.link(tmp_path / "big", tmp_path / "other" / "link")
    monkeypatch.setattr("flows.hashing.file_md5", lambda path: "read again")
    assert hasher.md5(tmp_path / "other" / "link") == md5


def test_a_spoilt_memory_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.hashing.REMEMBER_BYTES", 1)
    (tmp_path / "memory").write_text('{"half')
    (tmp_path / "a").write_text("x")
    assert Hasher(tmp_path / "memory").md5(tmp_path / "a") == "9dd4e461268c8034f5c8564e155c67a6"


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file or folder: .*gone"):
        Hasher(tmp_path / "memory").md5(tmp_path / "gone")


def test_a_memory_keeps_the_newest(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory", 3)
    memory.update({str(number): number for number in range(5)})
    memory.save()
    assert dict(Memory(tmp_path / "memory", 3)) == {"2": 2, "3": 3, "4": 4}
    memory = Memory(tmp_path / "memory", 3)
    memory["5"] = 5
    memory.save()
    assert list(Memory(tmp_path / "memory")) == ["3", "4", "5"]
    assert list(Memory(tmp_path / "gone", 3)) == []
