"""A run's branch holds a commit for each cell, with dvc.lock sorted; a dirty tree is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from afm.errors import UserError
from flows.branch import RunBranch, open_branch
from flows.git import changed_files, git


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
    return list(yaml.safe_load(git(root, ["show", "afm/run-1:dvc.lock"]))["stages"])


def test_each_cell_gets_a_commit_with_sorted_cells_beside_the_checkout(root: Path) -> None:
    branch = open_branch(root, "run-1")
    write_lock(root, b="1")
    first = branch.record("b")
    write_lock(root, b="1", a="2")
    second = branch.record("a")
    assert first != second
    assert committed(root) == ["a", "b"]
    subjects = git(root, ["log", "--format=%s", "main..afm/run-1"]).splitlines()
    assert subjects == ["a: outputs of this run", "b: outputs of this run"]
    assert branch.record("a") is None
    assert git(root, ["branch", "--show-current"]) == "main"
    assert changed_files(root, untracked=True) == []
    assert list(yaml.safe_load((root / "dvc.lock").read_text())["stages"]) == ["b", "a"], (
        "DVC's own file stays"
    )


def test_the_files_of_a_commit_are_those_of_head_and_the_index_stays(root: Path) -> None:
    branch = open_branch(root, "run-1")
    (root / "staged.txt").write_text("")
    git(root, ["add", "staged.txt"])
    write_lock(root, b="1")
    branch.record("b")
    files = git(root, ["ls-tree", "--name-only", "afm/run-1"]).splitlines()
    assert files == sorted(
        [*git(root, ["ls-tree", "--name-only", "HEAD"]).splitlines(), "dvc.lock"]
    )
    assert git(root, ["diff", "--cached", "--name-only"]) == "staged.txt"


def test_a_run_that_goes_on_from_a_later_commit_joins_both(root: Path) -> None:
    write_lock(root, a="1")
    before = open_branch(root, "run-1").record("a")
    (root / "params.yaml").write_text("a: 2\n")
    git(root, ["commit", "-qam", "second"])
    write_lock(root, a="1", b="1")
    commit = open_branch(root, "run-1").record("b")
    assert git(root, ["log", "-1", "--format=%P", str(commit)]).split() == [
        before,
        git(root, ["rev-parse", "main"]),
    ]
    assert git(root, ["show", f"{commit}:params.yaml"]) == "a: 2"


def test_two_runs_at_once_have_branches_of_their_own(root: Path) -> None:
    write_lock(root, a="1", b="1")
    one, other = open_branch(root, "run-1"), open_branch(root, "run-2")
    one.record("a")
    other.record("b")
    parents = [git(root, ["rev-parse", f"afm/run-{number}^"]) for number in (1, 2)]
    assert parents == [git(root, ["rev-parse", "main"])] * 2


def test_the_end_catches_up_with_what_a_killed_run_left(root: Path) -> None:
    branch = open_branch(root, "run-1")
    assert branch.finish() is None, "nothing has ever run"
    write_lock(root, a="1")
    assert branch.finish() is not None
    assert committed(root) == ["a"]
    assert branch.finish() is None


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


def test_a_refused_push_is_one_clear_error_and_the_end_tries_again(
    root: Path, tmp_path: Path
) -> None:
    git(root, ["remote", "add", "origin", str(tmp_path / "later.git")])
    branch = open_branch(root, "run-1")
    write_lock(root, a="1")
    with pytest.raises(UserError, match="git push"):
        branch.record("a")
    assert committed(root) == ["a"]
    git(tmp_path, ["init", "-q", "--bare", "later.git"])
    branch.finish()
    assert git(tmp_path / "later.git", ["rev-parse", "afm/run-1"])


def test_a_dvc_remote_that_is_away_costs_no_commit_and_is_asked_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def push(_root: Path, *words: str) -> str:
        asked.append(words)
        if len(asked) == 1:
            raise UserError("no answer")
        return ""

    branch = RunBranch(root, "afm/run-1", has_remote=True)
    monkeypatch.setattr("flows.branch.dvc", push)
    write_lock(root, a="1")
    with pytest.raises(UserError, match="no answer"):
        branch.record("a")
    assert committed(root) == ["a"]
    write_lock(root, a="1", b="1")
    branch.record("b")
    branch.finish()
    assert asked == [("push", "a"), ("push", "b"), ("push",)]


def test_a_lock_without_the_cell_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.branch.READ_S", 0.2)
    write_lock(root, a="1")
    with pytest.raises(UserError, match="no entry of b"):
        RunBranch(root, "afm/x", has_remote=False).record("b")
