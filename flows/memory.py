"""What the processes of one home remember for each other: a JSON file that only saves time and may be lost."""

import json
from collections.abc import Iterator, MutableMapping
from itertools import islice
from pathlib import Path
from typing import Any

from afm.jsonl import write_text


class Memory(MutableMapping[str, Any]):
    """Plain data by key, read at the first question."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        """Keep it in `path`, which may not exist yet; a file that is cut short counts as empty.

        Args:
            path: the file.
            most: how many entries are kept, the newest; None: all.
        """
        self._path = path
        self._most = most
        self._known: dict[str, Any] | None = None
        self._changed = False

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._load()[key] = value
        self._changed = True

    def __delitem__(self, key: str) -> None:
        del self._load()[key]
        self._changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def save(self) -> None:
        """Write what is new; a concurrent writer's entries may be lost, never wrong."""
        if self._changed:
            known = self._load()
            surplus = len(known) - self._most if self._most is not None else 0
            kept = dict(islice(known.items(), max(surplus, 0), None))
            write_text(self._path, json.dumps(kept))
            self._changed = False

    def _load(self) -> dict[str, Any]:
        if self._known is None:
            try:
                self._known = dict(json.loads(self._path.read_text(encoding="utf-8")))
            except (FileNotFoundError, json.JSONDecodeError):
                self._known = {}
        return self._known
