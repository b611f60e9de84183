"""Answers kept by the content of their request: in memory, and in a folder where one is given."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from afm.ids import content_id
from afm.jsonl import write_text


class Answer(BaseModel):
    """A backend's answer: what goes out as the body, and how it is typed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: str
    """`ok` or `empty`."""
    body: dict[str, Any]
    metadata: dict[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed on the way: no page, and no backend that another one stood in for."""
        return not self.metadata


class _Kept(BaseModel):
    """One file of the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kept_at: float
    answer: Answer


def request_key(tool: str, request: Mapping[str, Any], settings: str) -> str:
    """Hash a request with the params that shape its answer."""
    return content_id([tool, dict(request), settings])


class AnswerCache:
    """Keeps answers for a time; never a failure."""

    def __init__(self, folder: Path | None, *, ttl_s: float, max_entries: int) -> None:
        """Keep up to `max_entries` in memory, and all in `folder`, for `ttl_s` [s]."""
        from cachetools import TTLCache

        self._folder = folder
        self._ttl_s = ttl_s
        self._memory: Any = TTLCache(maxsize=max_entries, ttl=ttl_s)

    def get(self, key: str) -> Answer | None:
        """Return what is kept, or None."""
        answer: Answer | None = self._memory.get(key)
        if answer is None and self._folder is not None:
            answer = self._read(self._path(key))
            if answer is not None:
                self._memory[key] = answer
        return answer

    def put(self, key: str, answer: Answer) -> None:
        """Keep an answer in which nothing failed."""
        if not answer.is_whole:
            return
        self._memory[key] = answer
        if self._folder is not None:
            kept = _Kept(kept_at=time.time(), answer=answer)
            write_text(self._path(key), kept.model_dump_json())

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / key[:2] / f"{key}.json"

    def _read(self, path: Path) -> Answer | None:
        try:
            kept = _Kept.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None  # a file of another version is asked for again, and replaced
        return kept.answer if time.time() - kept.kept_at < self._ttl_s else None
