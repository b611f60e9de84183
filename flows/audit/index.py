"""The index: what records, locks and row files say, read once per content and kept in `.lineage/audit.duckdb`.

It is a cache and never a truth. Everything in it is filed under the hash of the bytes that it was read from: a record
or a dvc.lock that has changed has another hash, so what was read before cannot answer for it. A missing, damaged or
older index is made again. One process at a time uses it; records that a flow writes meanwhile come with the next audit.
"""

import fcntl
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from flows.audit.contents import fill
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
from flows.audit.runs import Run, from_json, placed, run_of_entry, to_json
from flows.audit.tables import SCHEMA, insert
from flows.workspace import Workspace

T = TypeVar("T")

VERSION = 1
"""Of the tables; another one means that the index is made again."""
FILE = "audit.duckdb"
MEMORY = "1GB"
"""Most memory that DuckDB takes for itself."""
THREADS = 2


class Index:
    """What is known of a checkout, up to date when it was opened."""

    def __init__(self, workspace: Workspace, connection: duckdb.DuckDBPyConnection) -> None:
        """Bring the tables in `connection` up to date with a checkout."""
        self.root, self.home = workspace.root, workspace.home
        self.contents = Contents(workspace)
        self.problems: list[str] = []
        """Records that could not be read."""
        self._db = connection
        self._records = self._read_records()
        own, committed = workspace_lock(self.root), committed_locks(self.root)
        versions = [*reversed(committed), *([own] if own else [])]
        self._read_locks([version.blob for version in versions])
        self.runs = [*self._runs(self._records), *self._locked(versions)]
        self.graph = Graph(self.runs)
        self.current = self._current(own)
        fill(self._db, self.contents, self.graph.runs)

    def query(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        found: list[tuple[Any, ...]] = self._db.execute(text, list(values)).fetchall()
        return found

    def record_path(self, run: Run) -> Path:
        """Return the record file that a run was read from."""
        return self._records[run.content]

    def code(self, run: Run) -> dict[str, str]:
        """Return the md5 of a run's code by path."""
        rows: Any = self.query("SELECT path, md5 FROM code WHERE key = ?", [run.entry])
        return dict(rows)

    def _read_records(self) -> dict[str, Path]:
        """Read new records; return the file of each that there is now, by the md5 of its bytes."""
        files = record_files(self.home)
        known = self._known("SELECT key FROM runs", files)
        runs = []
        for content in files.keys() - known:
            found = read_run(files[content], content)
            if isinstance(found, str):
                self.problems.append(found)
            else:
                runs.append(found)
        self._insert_runs(runs)
        return files

    def _read_locks(self, blobs: Sequence[str]) -> None:
        known = self._known("SELECT DISTINCT blob FROM locks", blobs)
        parsed = {key for (key,) in self.query("SELECT DISTINCT key FROM locks")}
        runs, rows = [], []
        for blob, entries in read_locks(self.root, [b for b in blobs if b not in known]):
            rows += [(blob, key) for key in entries] or [(blob, "")]
            for key, text in entries.items():
                found = parse_entry(text) if key not in parsed else None
                parsed.add(key)
                runs += [run_of_entry(*found, key)] if found else []
        self._insert_runs(runs)
        insert(self._db, "locks", {"blob": [r[0] for r in rows], "key": [r[1] for r in rows]})

    def _insert_runs(self, runs: Sequence[Run]) -> None:
        code = [(run.entry, path, md5) for run in runs for path, md5 in run.code.items()]
        self._db.begin()
        insert(self._db, "runs", {"key": [r.entry for r in runs], "body": list(map(to_json, runs))})
        columns = list(zip(*code, strict=True)) or [(), (), ()]
        insert(self._db, "code", dict(zip(("key", "path", "md5"), map(list, columns), strict=True)))
        self._db.commit()

    def _known(self, text: str, wanted: Sequence[str] | Mapping[str, Any]) -> set[str]:
        asked = set(wanted)
        return {key for (key,) in self.query(text) if key in asked}

    def _runs(self, keys: Mapping[str, Any]) -> Iterator[Run]:
        for key, body in self.query("SELECT key, body FROM runs"):
            if key in keys:
                yield from_json(body)

    def _locked(self, versions: Sequence[LockVersion]) -> Iterator[Run]:
        """Yield each entry that dvc.lock has held, with the first version that holds it."""
        entries: dict[str, list[str]] = {}
        for blob, key in self.query("SELECT blob, key FROM locks"):
            entries.setdefault(blob, []).append(key)
        first: dict[str, LockVersion] = {}
        for version in versions:
            for key in entries.get(version.blob, ()):
                first.setdefault(key, version)
        for run in self._runs(first):
            version = first[run.entry]
            yield placed(run, version.blob, version.commit, version.time)

    def _current(self, own: LockVersion | None) -> dict[str, str]:
        """Return the md5 of every output by path, as the workspace's dvc.lock has it."""
        if own is None:
            return {}
        text = "SELECT r.body FROM locks l JOIN runs r ON r.key = l.key WHERE l.blob = ?"
        bodies = [json.loads(body) for (body,) in self.query(text, [own.blob])]
        return {path: md5 for body in bodies for path, md5 in body["outs"].items()}


def ask(workspace: Workspace, question: Callable[[Index], T]) -> T:
    """Answer a question from an index that is up to date; one that turns out damaged is made again, once."""
    path = workspace.lineage / FILE
    path.parent.mkdir(exist_ok=True)
    with _exclusive(path.with_suffix(".lock")):
        try:
            return _ask(workspace, path, question)
        except duckdb.Error as error:
            print(f"audit: the index is made again: {str(error).splitlines()[0]}", file=sys.stderr)
            _remove(path)
            return _ask(workspace, path, question)


def _ask(workspace: Workspace, path: Path, question: Callable[[Index], T]) -> T:
    with _connect(path) as connection:
        index = Index(workspace, connection)
        for problem in index.problems:
            print(f"audit: {problem}", file=sys.stderr)
        return question(index)


@contextmanager
def _connect(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": THREADS,
    }
    connection = duckdb.connect(str(path), config=settings)
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS meta (version INTEGER)")
        found = connection.execute("SELECT version FROM meta").fetchall()
        if found != [(VERSION,)]:
            if found:
                raise duckdb.Error(f"its version is {found[0][0]}, not {VERSION}")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES (?)", [VERSION])
        yield connection
    finally:
        connection.close()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(path: Path) -> None:
    for name in (path, path.with_name(f"{path.name}.wal")):
        name.unlink(missing_ok=True)
