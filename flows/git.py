"""Git as this project asks it: one command at a time, and what differs from the commit."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from afm.errors import UserError

LOCK = "dvc.lock"
"""Grows while a run goes on; what it holds is no source of a result."""


def git(
    root: Path,
    words: Sequence[str],
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run git and return what it prints, without white space at the end.

    Args:
        root: the checkout.
        words: subcommand and arguments.
        stdin: its input.
        variables: added to its environment.

    Raises:
        UserError: it failed; quotes its message.
    """
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        ["git", *words], cwd=root, input=stdin, capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        raise UserError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout.rstrip()


def changed_files(root: Path, *, untracked: bool) -> list[str]:
    """Name the files that differ from the commit, dvc.lock apart."""
    which = "normal" if untracked else "no"
    lines = git(root, ["status", "--porcelain", f"--untracked-files={which}"]).splitlines()
    return sorted(path for path in (line[3:] for line in lines) if path != LOCK)


def require_clean(root: Path) -> None:
    """Refuse a tree that is no commit's.

    Raises:
        UserError: files differ; names them.
    """
    dirty = changed_files(root, untracked=True)
    if dirty:
        raise UserError(
            f"the tree differs from its commit: {', '.join(dirty[:10])}; commit, or put the changes away, "
            "since on a cluster every result must lead back to a commit"
        )
