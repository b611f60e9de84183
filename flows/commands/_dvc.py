"""Asking the dvc command. Only `flows.dag` loads DVC itself; these subcommands need one answer each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.environment import quiet_environment


def dvc(root: Path, *words: str) -> str:
    """Run a dvc command and return what it prints.

    Raises:
        UserError: it failed; quotes its message.
    """
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *words],
        cwd=root,
        env=quiet_environment(os.environ),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise UserError(
            f"dvc {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def status(root: Path, *words: str) -> dict[str, list[Any]]:
    """Return what DVC finds changed, by cell."""
    changes: dict[str, list[Any]] = json.loads(dvc(root, "status", "--json", *words) or "{}")
    return changes


def changed(entries: list[Any], kind: str) -> dict[str, Any]:
    """Return one kind of change (`changed deps` or `changed outs`) of a cell's status."""
    found = [entry[kind] for entry in entries if isinstance(entry, dict) and kind in entry]
    return dict(found[0]) if found else {}
