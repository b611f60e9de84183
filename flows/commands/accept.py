"""`afm accept STAGE`: keep a result whose code changed only in comments, docstrings or layout; proven and recorded."""

import argparse
import ast
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import write_json
from flows.commands._dvc import changed, dvc, status
from flows.git import git_bytes, git_output
from flows.lock_file import read_lock
from flows.workspace import Workspace, here
from stages._closure import is_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm accept`."""
    parser.add_argument("stages", nargs="+", metavar="STAGE", help="cell (sft@mhqa-tiny) or stage")
    parser.add_argument("--dry-run", action="store_true", help="only prove")


def run(args: argparse.Namespace) -> int:
    """Prove that nothing that runs has changed, commit dvc.lock's entries, and record it.

    Raises:
        UserError: something else changed; names it.
    """
    workspace = here()
    for cell, entries in status(workspace.root, *args.stages).items():
        files = prove(workspace.root, cell, entries)
        if not args.dry_run:
            dvc(workspace.root, "commit", "--force", cell)
            _record(workspace, cell, files)
        print(f"{cell}: only comments, docstrings or layout changed in {', '.join(files)}")
    return 0


def prove(root: Path, cell: str, entries: list[Any]) -> dict[str, str]:
    """Return the changed files of a stale cell with the md5 that dvc.lock holds.

    Raises:
        UserError: anything but the wording of Python files changed.
    """
    lock = read_lock(root).get(cell)
    if lock is None:
        raise UserError(f"{cell} has not run yet: there is no result to accept")
    recorded = {dep["path"]: dep.get("md5", "") for dep in lock.get("deps", ())}
    deps = changed(entries, "changed deps")
    obstacles = [*_obstacles(entries), *_file_obstacles(root, deps, recorded)]
    if obstacles:
        raise UserError(
            f"{cell} must run again, since more than wording changed: {'; '.join(obstacles)}"
        )
    return {path: recorded[path] for path in deps}


def _obstacles(entries: list[Any]) -> Iterator[str]:
    yield from (entry for entry in entries if isinstance(entry, str))
    yield from (f"output {path} {how}" for path, how in changed(entries, "changed outs").items())


def _file_obstacles(root: Path, deps: dict[str, Any], recorded: dict[str, str]) -> Iterator[str]:
    for path, how in deps.items():
        if isinstance(how, dict):
            yield f"params {', '.join(how)}"
        elif not is_code(path) or not path.endswith(".py") or how != "modified":
            yield f"{path} {how}"
        else:
            before = committed(root, path, recorded[path])
            if before is None:
                yield f"{path}: the version that dvc.lock saw was never committed"
            elif meaning(before) != meaning((root / path).read_bytes()):
                yield f"{path}: its code changed"


def committed(root: Path, path: str, md5: str) -> bytes | None:
    """Return the committed version of a file that has this md5, or None."""
    log = (git_output(root, ["log", "--all", "--format=%H", "--", path]) or "").split()
    for commit in log:
        content = git_bytes(root, ["show", f"{commit}:{path}"]) or b""
        if hashlib.md5(content).hexdigest() == md5:
            return content
    return None


def meaning(source: bytes) -> str:
    """Return the syntax tree of a module without docstrings; comments and layout are not in it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Attribute docstrings are bare strings too, and no bare string does anything.
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _record(workspace: Workspace, cell: str, files: dict[str, str]) -> None:
    """Keep what was accepted, so that an audit can tell it from a run."""
    entry = {
        "cell": cell,
        "accepted": time.time(),
        "files": files,
        "lock": read_lock(workspace.root)[cell],
    }
    write_json(workspace.lineage / "accepted" / f"{cell}-{int(time.time() * 1000)}.json", entry)
