"""Mending what a killed dvc leaves: it writes dvc.lock and its table of path locks in place, so a kill may cut them.

What is lost from dvc.lock costs nothing: the next run asks submit for those cells, and submit has their results.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from afm.jsonl import write_text
from afm.plain_yaml import parse_yaml
from flows.executors.processes import is_alive
from flows.lock_file import LOCK

POLL_S = 0.05
LOCK_WAIT_S = 20.0
"""How long a dvc that is at work is waited for [s]; longer, and it has read the files without complaint."""
MAX_DESCRIPTORS = 4096
_STAGE = re.compile(r"^  \S.*:$")


def watch_over(dvc: tuple[int, float], root: Path) -> None:
    """Leave a process behind that mends the files once this dvc has ended; one for each dvc.

    Nothing of ours runs between a dvc that was killed and the next one, which would stop at what it finds.

    Args:
        dvc: number and start time [s since 1970] of the process.
        root: folder of dvc.lock.
    """
    if os.fork():
        return
    try:
        _detach()
        with (root / ".dvc" / "tmp" / "watch").open("w") as stream:
            if _is_only_one(stream.fileno(), dvc[0]):
                while is_alive(*dvc):
                    time.sleep(POLL_S)
                mend(root)
    finally:
        os._exit(0)


def mend(root: Path) -> list[str]:
    """Cut dvc.lock back to its whole entries; drop path locks of processes that are no dvc.

    Returns:
        What was mended, for people.
    """
    done = []
    folder = root / ".dvc" / "tmp"
    with _held(folder / "lock") as held:
        done += [_mend_lock_file(root / LOCK)] if held else []
    with _held(folder / "rwlock.lock") as held:
        done += [_mend_path_locks(folder / "rwlock")] if held else []
    return [line for line in done if line]


def _mend_lock_file(path: Path) -> str | None:
    if not path.exists() or _is_whole(text := path.read_text(encoding="utf-8", errors="replace")):
        return None
    kept = _whole_entries(text)
    if kept:
        write_text(path, kept)
        return f"{path.name} was cut short; its last entry is dropped"
    path.unlink()
    return f"{path.name} was cut short before its first entry; removed"


def _is_whole(text: str) -> bool:
    """Tell whether DVC can read it; it also refuses an entry that broke off where the rest is YAML."""
    try:
        tree = parse_yaml(text)
    except yaml.YAMLError:
        return False
    if not isinstance(tree, dict) or not isinstance(tree.get("schema"), str):
        return False
    entries = tree.get("stages", {})
    return isinstance(entries, dict) and all(_is_whole_entry(entry) for entry in entries.values())


def _is_whole_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("cmd"), str | list):
        return False
    files, params = [entry.get(kind, []) for kind in ("deps", "outs")], entry.get("params", {})
    return (
        all(isinstance(some, list) and all(_is_whole_file(one) for one in some) for some in files)
        and isinstance(params, dict)
        and all(isinstance(values, dict) for values in params.values())
    )


def _is_whole_file(file: Any) -> bool:
    if not isinstance(file, dict) or "path" not in file:
        return False
    counts = ("size", "nfiles", "isexec")
    return all(isinstance(value, int if key in counts else str) for key, value in file.items())


def _whole_entries(text: str) -> str:
    """Return what stands before the last entry, or nothing where no entry is whole."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if _STAGE.match(line.rstrip("\n"))]
    kept = "".join(lines[: starts[-1]]) if len(starts) > 1 else ""
    return kept if kept and _is_whole(kept) else ""


def _mend_path_locks(path: Path) -> str | None:
    """DVC drops locks of processes that are gone, but takes a later process of the same number for the holder."""
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        path.unlink()
        return f"{path.name} was cut short; removed"
    kept = {kind: _without_dead(table.get(kind, {})) for kind in ("read", "write")}
    if kept == {kind: table.get(kind, {}) for kind in kept}:
        return None
    write_text(path, json.dumps({kind: locks for kind, locks in kept.items() if locks}))
    return f"{path.name} held locks of processes that are gone; dropped"


def _without_dead(locks: dict[str, Any]) -> dict[str, Any]:
    """Drop the holders that are no dvc from a table: a list of holders per path for reading, one for writing."""
    kept: dict[str, Any] = {}
    for path, holders in locks.items():
        if isinstance(holders, list):
            kept[path] = [one for one in holders if _is_dvc(int(one["pid"]))]
        elif holders and _is_dvc(int(holders["pid"])):
            kept[path] = holders
    return {path: holders for path, holders in kept.items() if holders}


def _is_dvc(pid: int) -> bool:
    try:
        return any("dvc" in word for word in psutil.Process(pid).cmdline())
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock that DVC has whenever it writes; yield whether it could be had."""
    if not path.exists():
        yield False
        return
    deadline = time.monotonic() + LOCK_WAIT_S
    with path.open("r+") as stream:
        held = _try_lock(stream.fileno())
        while not held and time.monotonic() < deadline:
            time.sleep(POLL_S)
            held = _try_lock(stream.fileno())
        yield held


def _is_only_one(descriptor: int, dvc: int) -> bool:
    """Lock the byte whose place in the file is the number of the process."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, dvc)
    except OSError:
        return False
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _detach() -> None:
    """Leave the caller's session, signals and files: whoever reads its output must see it end."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, MAX_DESCRIPTORS)
