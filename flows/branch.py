"""The branch of a run on a cluster: after each stage dvc.lock and run records are committed there.

So every result has a commit, and an MLflow that is lost can be made anew from the branches.

HEAD, the index and the files of the checkout stay as they are: commits are made beside them. What is committed is the
content of dvc.lock with the cells sorted, so that branches of runs compare well.
"""

import tempfile
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from afm.errors import UserError
from afm.plain_yaml import parse_yaml
from flows.commands._dvc import dvc
from flows.git import git, git_output, require_clean
from flows.lock_file import LOCK
from flows.records import read_records
from flows.workspace import LINEAGE, home_of

PREFIX = "afm/"
READ_S = 10.0
"""How long a dvc.lock that another dvc is writing may take to become whole [s]."""
AUTHOR = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "afm"), ("EMAIL", "afm@localhost"))
}
"""Who commits where git has not been told."""


class RunBranch:
    """The branch of one run; one thread uses it."""

    def __init__(self, root: Path, name: str, *, has_remote: bool) -> None:
        """Begin at the commit that is checked out; the branch itself begins with the first cell.

        Args:
            root: the checkout.
            name: of the branch.
            has_remote: whether DVC has a remote to push to by default.
        """
        self._root, self.name, self._has_remote = root, name, has_remote
        self._head = git(root, ["rev-parse", "HEAD"])
        self._author = {} if self._configured("user.email") else AUTHOR
        self._unpushed: set[str] = set()
        """Cells whose outputs DVC's remote may lack."""

    def record(self, cell: str) -> str | None:
        """Push a cell's outputs to DVC's remote and commit its entry of dvc.lock.

        Returns:
            The commit; None where its entry is there already.

        Raises:
            UserError: a remote refuses; the commit is made all the same.
        """
        try:
            self._push_outputs(cell)
        finally:
            commit = self._commit(_whole(self._root, cell), {cell}, f"{cell}: outputs of this run")
        self._push_branch()
        return commit

    def finish(self) -> str | None:
        """Catch up with what no `record` brought: cells of an earlier run that was killed, and pushes that failed.

        Returns:
            The commit; None where there is nothing to add.

        Raises:
            UserError: a remote refuses.
        """
        if not (self._root / LOCK).exists():
            return None
        lock = _whole(self._root, None)
        commit = self._commit(lock, {*lock["stages"]}, "outputs of this run")
        if commit or self._unpushed:
            self._push_outputs()
            self._unpushed.clear()
        self._push_branch()
        return commit

    def _push_outputs(self, *cells: str) -> None:
        if self._has_remote:
            self._unpushed |= {*cells}
            dvc(self._root, "push", *cells)
            self._unpushed -= {*cells}

    def _push_branch(self) -> None:
        if self._tip() and self._configured("remote.origin.url"):
            self._git("push", "-q", "origin", f"{self._ref}:{self._ref}")

    def _commit(self, lock: dict[str, Any], cells: Set[str], message: str) -> str | None:
        tip = self._tip()
        parents = self._parents(tip)
        made = self._tree(parents[-1], {LOCK: _sorted(lock), **_records(self._root, lock, cells)})
        if len(parents) == 1 and made == self._git("rev-parse", f"{parents[0]}^{{tree}}"):
            return None
        words = [word for parent in parents for word in ("-p", parent)]
        commit = self._git("commit-tree", made, *words, "-m", message)
        self._git("update-ref", self._ref, commit, tip or "0" * 40)
        return commit

    @property
    def _ref(self) -> str:
        return f"refs/heads/{self.name}"

    def _tip(self) -> str | None:
        return self._git("for-each-ref", "--format=%(objectname)", self._ref) or None

    def _parents(self, tip: str | None) -> list[str]:
        """Return what the next commit follows: the branch, joined with HEAD where that has moved on since.

        The files come from the last of them.
        """
        if tip is None:
            return [self._head]
        is_joined = self._git("merge-base", tip, self._head) == self._head
        return [tip] if is_joined else [tip, self._head]

    def _tree(self, base: str, files: Mapping[str, str]) -> str:
        """Write the tree of a commit with some other files."""
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            self._git("read-tree", base, variables=index)
            for path, text in files.items():
                blob = self._git("hash-object", "-w", "--stdin", stdin=text)
                entry = f"100644,{blob},{path}"
                self._git("update-index", "--add", "--cacheinfo", entry, variables=index)
            return self._git("write-tree", variables=index)

    def _configured(self, key: str) -> bool:
        return git_output(self._root, ["config", key]) is not None

    def _git(
        self, *words: str, stdin: str | None = None, variables: Mapping[str, str] | None = None
    ) -> str:
        return git(self._root, words, stdin, {**self._author, **(variables or {})})


def open_branch(root: Path, run: str) -> RunBranch:
    """Return the branch of a run, new or continued, of a clean checkout.

    Raises:
        UserError: files differ from the commit: a result must be made from what a commit holds.
    """
    require_clean(root)
    has_remote = "core.remote=" in dvc(root, "config", "--list")
    return RunBranch(root, PREFIX + run, has_remote=has_remote)


def _whole(root: Path, cell: str | None) -> dict[str, Any]:
    """Read dvc.lock with the entry of a cell; another dvc may be in the middle of writing it."""
    deadline = time.monotonic() + READ_S
    while True:
        try:
            tree = parse_yaml((root / LOCK).read_text(encoding="utf-8"))
            if cell is None or cell in tree["stages"]:
                return {**tree, "stages": dict(tree["stages"])}
        except (OSError, yaml.YAMLError, TypeError, KeyError):
            pass
        if time.monotonic() > deadline:
            lacks = f"no entry of {cell}" if cell else "no cells"
            raise UserError(f"{root / LOCK} has {lacks}; run `dvc repro {cell or ''}` again")
        time.sleep(0.1)


def _records(root: Path, lock: dict[str, Any], cells: Set[str]) -> dict[str, str]:
    """Return the files of the run records that tell how the outputs of some cells came about."""
    home = home_of(root)
    made = {
        cell: {out["path"]: out["md5"] for out in lock["stages"][cell]["outs"]} for cell in cells
    }
    names = [
        f"{LINEAGE}/{record.identity}.json"
        for record in read_records(home)
        if made.get(record.cell) == record.outs
    ]
    return {name: (home / name).read_text(encoding="utf-8") for name in names}


def _sorted(tree: dict[str, Any]) -> str:
    cells = dict(sorted(tree["stages"].items()))
    return yaml.safe_dump({**tree, "stages": cells}, sort_keys=False, allow_unicode=True)
