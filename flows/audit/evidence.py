"""What `verify` rests on: the files themselves, read and hashed anew. It never asks the index."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.audit.blobs import Blobs
from flows.audit.graph import Graph
from flows.audit.history import (
    LockVersion,
    committed_locks,
    parse_entry,
    read_locks,
    read_run,
    record_files,
    workspace_lock,
)
from flows.audit.locate import Contents
from flows.audit.runs import Run, placed, run_of_entry
from flows.hashing import file_md5
from flows.workspace import Workspace


def as_written(value: Any) -> bytes:
    """Return the bytes of a document that `afm.jsonl.write_json` wrote and nobody has touched (a test compares)."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False)
    return f"{text}\n".encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that does not agree with what is recorded."""

    what: str
    """File, record, manifest, entry or commit."""
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of one version of dvc.lock."""

    version: LockVersion
    cell: str
    body: Mapping[str, Any]
    run: Run

    @property
    def where(self) -> str:
        """Say which version it stands in."""
        return f"dvc.lock of commit {self.version.commit}" if self.version.commit else "dvc.lock"


@dataclass(kw_only=True)
class Evidence:
    """Everything that a checkout holds about its past."""

    workspace: Workspace
    problems: list[Finding] = field(default_factory=list)
    """Records that cannot be read."""
    hashed: dict[tuple[int, int], str] = field(default_factory=dict)
    """md5 of each file that has been read, by device and inode: hard links are one file."""
    bytes_read: int = 0

    @property
    def root(self) -> Path:
        """The checkout."""
        return self.workspace.root

    @cached_property
    def contents(self) -> Contents:
        """Content by md5."""
        return Contents(self.workspace)

    @cached_property
    def blobs(self) -> Blobs:
        """Files as commits hold them."""
        return Blobs(self.root)

    @cached_property
    def records(self) -> dict[str, Path]:
        """Record file by the md5 of its bytes."""
        return record_files(self.workspace.home)

    @cached_property
    def entries(self) -> list[Entry]:
        """Every entry of every version of dvc.lock, the workspace's first, then from new to old."""
        own = workspace_lock(self.root)
        versions = {version.blob: version for version in reversed(committed_locks(self.root))}
        if own is not None:
            versions = {own.blob: own} | {b: v for b, v in versions.items() if b != own.blob}
        return list(self._entries(versions))

    def _entries(self, versions: Mapping[str, LockVersion]) -> Iterator[Entry]:
        parsed: dict[str, tuple[str, Mapping[str, Any]] | None] = {}
        for blob, texts in read_locks(self.root, list(versions)):
            for key, text in texts.items():
                if key not in parsed:
                    parsed[key] = parse_entry(text)
                found = parsed[key]
                if found is not None:
                    version = versions[blob]
                    run = placed(run_of_entry(*found, key), blob, version.commit, version.time)
                    yield Entry(version=version, cell=found[0], body=found[1], run=run)

    @cached_property
    def current(self) -> dict[str, str]:
        """The md5 of every output by path, as the workspace's dvc.lock has it."""
        return {path: md5 for entry in self._own for path, md5 in entry.run.outs.items()}

    @cached_property
    def current_deps(self) -> dict[str, str]:
        """The md5 of every data dependency by path, as the workspace's dvc.lock has it."""
        return {path: md5 for entry in self._own for path, md5 in entry.run.deps.items()}

    @cached_property
    def _own(self) -> list[Entry]:
        """Entries of the workspace's dvc.lock, which may be a commit's too."""
        own = workspace_lock(self.root)
        return [entry for entry in self.entries if own and entry.version.blob == own.blob]

    @cached_property
    def graph(self) -> Graph:
        """All runs."""
        runs = []
        for content, path in self.records.items():
            found = read_run(path, content)
            if isinstance(found, str):
                self.problems.append(Finding(what=self.name(path), why=found))
            else:
                runs.append(found)
        return Graph([*runs, *(entry.run for entry in self.entries)])

    def pins(self, commit: str | None, environment: str) -> set[str]:
        """Return the md5 of an environment's constraints files, its GPU variants' too, in a commit or the workspace."""
        start = f"constraints/{environment}"
        if commit is None:
            return {self.md5(path) for path in self.root.glob(f"{start}*.txt")}
        files = self.blobs.files(commit) or {}
        return {self.blobs.md5(blob) for path, blob in files.items() if path.startswith(start)}

    def name(self, path: Path) -> str:
        """Return a path as a reader in the checkout knows it."""
        for folder in (self.root, self.workspace.home):
            if path.is_relative_to(folder):
                return str(path.relative_to(folder))
        return str(path)

    def md5(self, path: Path) -> str:
        """Hash a file's bytes, once per inode."""
        state = path.stat()
        key = (state.st_dev, state.st_ino)
        if key not in self.hashed:
            self.hashed[key] = file_md5(path)
            self.bytes_read += state.st_size
        return self.hashed[key]
