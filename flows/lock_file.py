"""dvc.lock, as far as it can be read without DVC."""

from pathlib import Path
from typing import Any

from afm.plain_yaml import parse_yaml

LOCK = "dvc.lock"


def read_lock(root: Path) -> dict[str, Any]:
    """Return the entries of dvc.lock by cell, or none where nothing has run yet."""
    path = root / LOCK
    if not path.exists():
        return {}
    lock = parse_yaml(path.read_text(encoding="utf-8")) or {}
    entries: dict[str, Any] = lock.get("stages", {})
    return entries
