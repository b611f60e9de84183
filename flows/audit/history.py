"""What a checkout knows of its past: record files, and every version of dvc.lock that git or the workspace holds."""

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from afm.plain_yaml import parse_yaml
from flows.audit.runs import Run, run_of_record
from flows.git import git_output
from flows.lock_file import LOCK
from flows.records import Record
from flows.store import RECORD

CHUNK = 100
"""Versions of dvc.lock that are in memory at once."""
_ENTRY = re.compile(r"^  [^\s#].*:$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockVersion:
    """One content of dvc.lock."""

    blob: str
    """Its name in git."""
    commit: str | None
    """First commit that holds it; None for one that only the workspace has."""
    time: float
    """Of that commit [s since 1970]; 0 without one."""


def record_files(root: Path) -> dict[str, Path]:
    """Return the record file of each finished result by the md5 of its bytes.

    A result that DVC's own run cache brought back has its record beside it alone.
    """
    beside = {
        path.parent.name: path
        for path in (root / ".results").glob(f"*/{RECORD}")
        if path.parent.suffix != ".partial"
    }
    own = {path.stem: path for path in (root / ".lineage").glob("*.json")}
    return {_md5(path): path for path in (beside | own).values()}


def read_run(path: Path, content: str) -> Run | str:
    """Read a record file, or say why it cannot be."""
    try:
        body = path.read_bytes()
        if hashlib.md5(body).hexdigest() != content:
            return f"{path} changed while it was read; ask again"
        return run_of_record(Record.model_validate_json(body), content)
    except (FileNotFoundError, ValidationError) as error:
        first = str(error).splitlines()[0]
        return f"{path} is no run record, so it is left out: {first}"


def workspace_lock(root: Path) -> LockVersion | None:
    """Return the version in the workspace, or None where there is none."""
    path = root / LOCK
    if not path.exists():
        return None
    return LockVersion(blob=git_blob(path.read_bytes()), commit=None, time=0.0)


def committed_locks(root: Path) -> list[LockVersion]:
    """Return every version that a branch of git has held, each with its oldest commit."""
    words = ["log", "--all", "--raw", "--no-abbrev", "--no-renames", "--format=@%H %ct"]
    text = git_output(root, [*words, "--", LOCK]) or ""
    found: dict[str, LockVersion] = {}
    commit, time = "", 0.0
    for line in text.splitlines():
        if line.startswith("@"):
            commit, time = line[1:].split()[0], float(line.split()[1])
        elif line.startswith(":") and not line.split()[4].startswith("D"):
            blob = line.split()[3]
            found[blob] = LockVersion(blob=blob, commit=commit, time=time)
    return list(found.values())


def read_locks(root: Path, blobs: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the entries of each version; one that cannot be read has none."""
    path = root / LOCK
    own = path.read_bytes() if path.exists() else b""
    mine = [git_blob(own)] if git_blob(own) in blobs else []
    yield from ((blob, split_entries(own)) for blob in mine)
    others = [blob for blob in blobs if blob not in mine]
    for start in range(0, len(others), CHUNK):
        for blob, content in _cat(root, others[start : start + CHUNK]):
            yield blob, split_entries(content)


def split_entries(content: bytes) -> Mapping[str, str]:
    """Return the text of each entry by its md5: versions share most entries, and parsing YAML is slow."""
    text = content.decode("utf-8", errors="replace")
    starts = [match.start() for match in _ENTRY.finditer(text)]
    parts = (text[at:end] for at, end in pairwise([*starts, len(text)]))
    return {hashlib.md5(part.encode()).hexdigest(): part for part in parts}


def parse_entry(text: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return cell and entry; None where it was cut short."""
    try:
        ((cell, entry),) = parse_yaml(text).items()
    except (yaml.YAMLError, AttributeError, ValueError):
        return None
    is_whole = isinstance(entry, dict) and entry.get("cmd") and entry.get("outs")
    return (str(cell), entry) if is_whole else None


def _cat(root: Path, blobs: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    done = subprocess.run(
        ["git", "cat-file", "--batch"],
        cwd=root,
        input="".join(f"{blob}\n" for blob in blobs).encode(),
        capture_output=True,
        check=True,
    )
    rest = done.stdout
    while rest:
        head, _, rest = rest.partition(b"\n")
        blob, kind, *size = head.decode().split()
        length = int(size[0]) if kind == "blob" else 0
        if kind == "blob":
            yield blob, rest[:length]
            rest = rest[length + 1 :]


def git_blob(content: bytes) -> str:
    """Return the name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()
