"""The branch of a run on a cluster: after each stage dvc.lock is committed there, so that every result has a commit.

The run's checkout is its own; nobody else commits in it. dvc.lock itself is left as DVC wrote it, since another cell's
dvc may be writing it: what is committed is its content with the cells sorted, so that branches of runs compare well.
"""

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from afm.errors import UserError
from flows.commands._dvc import dvc

LOCK = "dvc.lock"
PREFIX = "afm/"
READ_S = 10.0
"""How long a dvc.lock that another dvc is writing may take to become whole [s]."""
AUTHOR = ("-c", "user.name=afm", "-c", "user.email=afm@localhost")
"""Who commits where git has not been told."""


class RunBranch:
    """The branch of one run in its checkout."""

    def __init__(self, root: Path, name: str) -> None:
        """Use the branch `name` in the checkout `root`, which is on it."""
        self._root, self.name = root, name
        self._lock = threading.Lock()

    def record(self, cell: str) -> str | None:
        """Push a cell's outputs to DVC's remote and commit its entry of dvc.lock.

        Returns:
            The commit; None where its entry is there already.

        Raises:
            UserError: a remote refuses; what was committed stays committed.
        """
        if self._has_dvc_remote():
            dvc(self._root, "push", cell)
        with self._lock:
            return self._commit(cell)

    def _commit(self, cell: str) -> str | None:
        blob = self._git("hash-object", "-w", "--stdin", stdin=_sorted(_whole(self._root, cell)))
        self._git("update-index", "--add", "--cacheinfo", f"100644,{blob},{LOCK}")
        if not self._git("diff", "--cached", "--name-only"):
            return None
        author = () if self._configured("user.email") else AUTHOR
        self._git(*author, "commit", "-q", "-m", f"{cell}: outputs of this run")
        if self._configured("remote.origin.url"):
            self._git("push", "-q", "origin", f"HEAD:refs/heads/{self.name}")
        return self._git("rev-parse", "HEAD")

    def _has_dvc_remote(self) -> bool:
        return bool(dvc(self._root, "remote", "list").strip())

    def _configured(self, key: str) -> bool:
        done = subprocess.run(["git", "config", key], cwd=self._root, capture_output=True)
        return done.returncode == 0

    def _git(self, *words: str, stdin: str | None = None) -> str:
        return git(self._root, words, stdin)


def open_branch(root: Path, run: str) -> RunBranch:
    """Put a clean checkout onto the branch of a run, new or continued.

    Raises:
        UserError: tracked files differ from the commit: a result must be made from what a commit holds.
    """
    name = PREFIX + run
    changed = [line[3:] for line in git(root, ["status", "--porcelain"]).splitlines()]
    dirty = [path for path in changed if path != LOCK]
    if dirty:
        raise UserError(
            f"the tree differs from its commit: {', '.join(sorted(dirty)[:10])}; commit and run the new revision, "
            "since on a cluster every result must lead back to a commit"
        )
    if git(root, ["branch", "--show-current"]) != name:
        exists = git(root, ["branch", "--list", name])
        git(root, ["switch", "-q", *([] if exists else ["-c"]), name])
    return RunBranch(root, name)


def git(root: Path, words: Sequence[str], stdin: str | None = None) -> str:
    """Run git and return what it prints, without white space at the end.

    Raises:
        UserError: it failed; quotes its message.
    """
    done = subprocess.run(["git", *words], cwd=root, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise UserError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout.rstrip()


def _whole(root: Path, cell: str) -> dict[str, Any]:
    """Read dvc.lock; another dvc may be in the middle of writing it."""
    deadline = time.monotonic() + READ_S
    while True:
        try:
            tree = yaml.safe_load((root / LOCK).read_text(encoding="utf-8"))
            if cell in tree["stages"]:
                return dict(tree)
        except (OSError, yaml.YAMLError, TypeError, KeyError):
            pass
        if time.monotonic() > deadline:
            raise UserError(f"{root / LOCK} has no entry of {cell}; run `dvc repro {cell}` again")
        time.sleep(0.1)


def _sorted(tree: dict[str, Any]) -> str:
    cells = dict(sorted(tree["stages"].items()))
    return yaml.safe_dump({**tree, "stages": cells}, sort_keys=False, allow_unicode=True)
