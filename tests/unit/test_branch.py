"""A run's branch holds a commit for each cell, with dvc.lock sorted; a dirty tree is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from afm.errors import UserError
from flows.branch import RunBranch, git, open_branch


def entry(md5: str) -> dict[str, object]:
    return {"cmd": "x", "outs": [{"path": "data/x", "md5": md5}]}


def write_lock(root: Path, **cells: str) -> None:
    tree = {"schema": "2.0", "stages": {name: entry(md5) for name, md5 in cells.items()}}
    (root / "dvc.lock").write_text(yaml.safe_dump(tree, sort_keys=False))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for words in (
        ["init", "-q", "-b", "main"],
        ["config", "user.email", "a@b"],
        ["config", "user.name", "a"],
    ):
        git(folder, words)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
    (folder / "params.yaml").write_text("a: 1\n")
    git(folder, ["add", "-A"])
    git(folder, ["commit", "-qm", "first"])
    return folder


def committed(root: Path) -> list[str]:
    return list(yaml.safe_load(git(root, ["show", "HEAD:dvc.lock"]))["stages"])


def test_each_cell_gets_a_commit_with_sorted_cells(root: Path) -> None:
    branch = open_branch(root, "run-1")
    write_lock(root, b="1")
    first = branch.record("b")
    write_lock(root, b="1", a="2")
    second = branch.record("a")
    assert first != second
    assert committed(root) == ["a", "b"]
    assert git(root, ["branch", "--show-current"]) == "afm/run-1"
    assert git(root, ["log", "--format=%s", "main.."]).splitlines()[0] == "a: outputs of this run"
    assert list(yaml.safe_load((root / "dvc.lock").read_text())["stages"]) == ["b", "a"], (
        "DVC's own file stays"
    )
    assert branch.record("a") is None


def test_a_dirty_tree_is_refused_and_named(root: Path) -> None:
    (root / "params.yaml").write_text("a: 2\n")
    with pytest.raises(UserError, match=r"params\.yaml"):
        open_branch(root, "run-1")


def test_an_untracked_file_counts_but_dvc_lock_does_not(root: Path) -> None:
    write_lock(root, a="1")
    open_branch(root, "run-1")
    (root / "extra.py").write_text("")
    with pytest.raises(UserError, match=r"extra\.py"):
        open_branch(root, "run-1")


def test_a_run_goes_on_with_its_branch(root: Path) -> None:
    write_lock(root, a="1")
    open_branch(root, "run-1").record("a")
    write_lock(root, a="1", b="1")
    branch = open_branch(root, "run-1")
    assert branch.record("b") is not None
    assert committed(root) == ["a", "b"]


def test_commits_and_outputs_go_to_the_remotes(root: Path, tmp_path: Path) -> None:
    origin, storage = tmp_path / "origin.git", tmp_path / "storage"
    git(tmp_path, ["init", "-q", "--bare", str(origin)])
    git(root, ["remote", "add", "origin", str(origin)])
    (root / "dvc.yaml").write_text(
        "stages:\n  a:\n    cmd: echo hello > a.txt\n    outs: [a.txt]\n"
    )
    subprocess.run(
        [sys.executable, "-m", "dvc", "remote", "add", "-d", "store", str(storage)],
        cwd=root,
        check=True,
    )
    subprocess.run(
        [sys.executable, "-m", "dvc", "config", "core.autostage", "false"], cwd=root, check=True
    )
    (root / ".gitignore").write_text("/a.txt\n")
    git(root, ["add", "-A"])
    git(root, ["commit", "-qm", "stage"])
    branch = open_branch(root, "run-1")
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)
    commit = branch.record("a")
    assert git(origin, ["rev-parse", "afm/run-1"]) == commit
    assert list(storage.rglob("*/*"))


def test_a_refused_push_is_one_clear_error_and_the_commit_stays(root: Path, tmp_path: Path) -> None:
    git(root, ["remote", "add", "origin", str(tmp_path / "nowhere")])
    branch = open_branch(root, "run-1")
    write_lock(root, a="1")
    with pytest.raises(UserError, match="git push"):
        branch.record("a")
    assert committed(root) == ["a"]


def test_a_lock_without_the_cell_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.branch.READ_S", 0.2)
    write_lock(root, a="1")
    with pytest.raises(UserError, match="no entry of b"):
        RunBranch(root, "afm/x").record("b")
