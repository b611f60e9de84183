"""Git as this project asks it: one command at a time, and what differs from the commit."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from afm.errors import UserError
from flows.lock_file import LOCK

UNATTENDED = {"GIT_TERMINAL_PROMPT": "0"}
"""No question for a password: nobody is there to answer it."""


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
    environment = {**os.environ, **UNATTENDED, **(variables or {})}
    done = subprocess.run(
        ["git", *words], cwd=root, input=stdin, capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        raise UserError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout.rstrip()


def git_output(root: Path, words: Sequence[str], timeout_s: float | None = None) -> str | None:
    """Return what git prints, without white space at the end; None where it fails, as without a repository."""
    found = git_bytes(root, words, timeout_s)
    return None if found is None else found.decode("utf-8", errors="replace").rstrip()


def git_bytes(root: Path, words: Sequence[str], timeout_s: float | None = None) -> bytes | None:
    """Return the bytes that git prints; None where it fails, takes longer than `timeout_s`, or is not installed."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=root,
            env={**os.environ, **UNATTENDED},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def changed_files(root: Path, *, untracked: bool) -> list[str]:
    """Name the files that differ from the commit, dvc.lock apart: it grows while a run goes on, and is no source."""
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
