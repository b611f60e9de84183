"""`afm why STAGE`: which dependency, param, output or command differs from what dvc.lock recorded."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afm.params.reading import read_tree
from flows.commands._dvc import changed, status
from flows.lock_file import read_lock
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm why`."""
    parser.add_argument(
        "stage", help="cell (sft@mhqa-tiny) or stage; all it depends on is looked at too"
    )
    parser.add_argument("--json", action="store_true", help="what DVC finds, for machines")


def run(args: argparse.Namespace) -> int:
    """Explain staleness.

    Exit codes: 0 up to date; 1 stale.
    """
    root = here().root
    changes = status(root, "--with-deps", args.stage)
    if args.json:
        print(json.dumps(changes, indent=2))
    else:
        print(
            "\n".join(explain(root, changes))
            or f"{args.stage} is up to date, and so is all it depends on"
        )
    return 1 if changes else 0


def explain(root: Path, changes: dict[str, list[Any]]) -> Iterator[str]:
    """Yield a line per cell and one per difference, with old and new values of params."""
    lock = read_lock(root)
    for cell, entries in changes.items():
        yield cell if cell in lock else f"{cell} has not run yet"
        if cell in lock:
            for entry in entries:
                if isinstance(entry, str):
                    yield f"  {entry}"
            yield from _paths(root, lock[cell], changed(entries, "changed deps"))
            for path, how in changed(entries, "changed outs").items():
                yield f"  output {path} {how}"


def _paths(root: Path, entry: Any, deps: dict[str, Any]) -> Iterator[str]:
    for path, how in deps.items():
        if isinstance(how, dict):
            recorded = entry.get("params", {}).get(path, {})
            tree = read_tree(root / path)
            for key in how:
                yield from _values(key, recorded.get(key), _value(tree, key))
        else:
            yield f"  {path} {how}"


def _values(key: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the leaves that differ below a section."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield from _values(f"{key}.{name}", old.get(name), new.get(name))
    else:
        yield f"  param {key}: {old!r} -> {new!r}"


def _value(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
