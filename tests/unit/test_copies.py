"""A copy of the checkout follows it, with its own params, and keeps what it has made."""

import shutil
import subprocess
from pathlib import Path

import pytest

from afm.params.root import read_params
from flows.copies import SMOKE, make_copy
from tests.support.toy import REPO


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "afm").mkdir(parents=True)
    (folder / "afm" / "a.py").write_text("one")
    (folder / "old.txt").write_text("old")
    (folder / ".gitignore").write_text("/data/\n/.venv\n")
    (folder / ".venv").mkdir()
    shutil.copy(REPO / "params.yaml", folder)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def test_a_copy_follows_the_working_tree_and_keeps_results(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    make_copy(root, copy, SMOKE)
    assert read_params(copy / "params.yaml").run.scales == ("smoke",)
    assert (copy / ".venv").resolve() == root / ".venv"
    (copy / "data").mkdir()
    (copy / "data" / "made").write_text("x")
    unchanged = (copy / ".gitignore").stat().st_mtime_ns
    (root / "afm" / "a.py").write_text("two")
    (root / "old.txt").unlink()
    make_copy(root, copy, SMOKE)
    assert (copy / "afm" / "a.py").read_text() == "two"
    assert not (copy / "old.txt").exists()
    assert (copy / "data" / "made").exists()
    assert (copy / ".gitignore").stat().st_mtime_ns == unchanged
    assert read_params(root / "params.yaml").run.scales != ("smoke",)
    state = subprocess.run(["git", "status", "--short"], cwd=copy, capture_output=True, text=True)
    assert state.stdout == ""
