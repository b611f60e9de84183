"""`afm gc`: free what can be had again, and what nothing reaches any more; without `--yes` it only lists."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from afm.errors import UserError
from flows.cleanup.freed import Freed, shown
from flows.cleanup.objects import Unreached, unreached
from flows.cleanup.reach import Reach, find_reach
from flows.cleanup.results import Removal, collect, open_store
from flows.commands._dvc import dvc
from flows.executors import ClusterError, make_executor
from flows.git import git
from flows.workspace import Workspace, here

KINDS = ("results", "scratch", "cache", "remote")
EXIT_UNKNOWN = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm gc`."""
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--yes", action="store_true", help="do it; without, it only lists")
    wanted.add_argument("--dry-run", action="store_true", help="only list, as without --yes")
    parser.add_argument(
        "--ended", action="store_true", help="checkpoints of jobs that ended without a result too"
    )
    parser.add_argument(
        "--cache", action="store_true", help="objects of DVC's cache that nothing reaches too"
    )
    parser.add_argument(
        "--remote", action="store_true", help="objects of DVC's default remote likewise"
    )
    parser.add_argument(
        "--without-aliases",
        action="store_true",
        help="do not ask MLflow which models have an alias: they go if nothing else reaches them",
    )
    parser.add_argument(
        "--projects",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="other checkouts with the same cache; what they use stays. For a cache outside of this checkout you must "
        "name all, or give the option without a folder where there are none",
    )


def run(args: argparse.Namespace) -> int:
    """List or free.

    Exit codes: 0 done; 1 the cluster did not tell which endpoints have no users.

    Raises:
        UserError: what is in use cannot be told.
    """
    workspace = here()
    cache = workspace.root / dvc(workspace.root, "cache", "dir").strip()
    kinds = [kind for kind in ("cache", "remote") if getattr(args, kind)]
    # Asked before anything goes: where it cannot be told what is in use, nothing does.
    reach = _reach(workspace, cache, kinds, args) if kinds else None
    report = Report(workspace, done=args.yes)
    for one in collect(workspace, cache, ended=args.ended, delete=args.yes):
        report.folder(one)
    if reach is not None:
        _free_objects(workspace.root, reach, kinds, report)
    report.close()
    return _tidy(args)


def _tidy(args: argparse.Namespace) -> int:
    """End what ran beside jobs and is of no use to any."""
    try:
        ended = make_executor(os.environ).tidy(dry_run=not args.yes)
    except ClusterError as error:
        print(f"cannot tell which endpoints have no users: {error}", file=sys.stderr)
        return EXIT_UNKNOWN
    for what in ended:
        print(f"{'ended' if args.yes else 'would end'} {what}")
    return 0


def _reach(
    workspace: Workspace, cache: Path, kinds: Sequence[str], args: argparse.Namespace
) -> Reach:
    """Find out what must stay.

    Raises:
        UserError: it cannot be told.
    """
    is_own = cache.resolve().is_relative_to(workspace.root.resolve() / ".dvc")
    if "cache" in kinds and not is_own and args.projects is None:
        raise UserError(
            f"DVC's cache {cache} lies outside of this checkout, so others may use it: name them with --projects "
            "DIR ..., or give --projects alone where there are none"
        )
    if "remote" in kinds:
        _fetch(workspace.root)
    # Else an MLflow that is down takes minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    store = open_store(workspace)
    reach = find_reach(workspace, os.environ, store, aliases=not args.without_aliases)
    return replace(reach, checkouts=(*reach.checkouts, *(args.projects or ())))


def _fetch(root: Path) -> None:
    """Bring in the branches that others have pushed: what they name is in the same remote.

    Raises:
        UserError: a remote of git does not answer.
    """
    for name in git(root, ["remote"]).split():
        git(root, ["fetch", "--quiet", name])


def _free_objects(root: Path, reach: Reach, kinds: Sequence[str], report: "Report") -> None:
    found = unreached(
        root,
        revisions=reach.revisions,
        md5s=reach.md5s,
        contents=reach.contents,
        others=reach.checkouts,
        kinds=kinds,
    )
    with found as parts:
        for part in parts:
            report.objects(part)


class Report:
    """Says what goes, and counts what that frees; objects go as they are reported."""

    def __init__(self, workspace: Workspace, *, done: bool) -> None:
        """Begin; `done` where things do go."""
        self._workspace, self._done = workspace, done
        self._freed, self._totals = Freed(), Counter[str]()
        self._verb = "removed" if done else "would remove"

    def folder(self, one: Removal) -> None:
        """Report a folder that goes next."""
        size = self._freed.add(one.path)
        self._totals[one.kind] += size
        print(f"{self._verb} {self._workspace.relative(one.path)} ({shown(size)})")

    def objects(self, part: Unreached) -> None:
        """Report objects of the cache or the remote, and remove them."""
        is_local = part.kind == "cache"
        sizes = [
            self._freed.add(Path(path)) if is_local else part.size(path) for path in part.paths
        ]
        self._totals[part.kind] += sum(sizes)
        if self._done and part.paths:
            part.delete()
        print(f"{self._verb} {len(part.paths)} object(s) of the {part.kind} ({shown(sum(sizes))})")

    def close(self) -> None:
        """Sum up."""
        parts = [f"{kind} {shown(self._totals[kind])}" for kind in KINDS if kind in self._totals]
        if not parts:
            print("there is nothing to free")
        elif self._done:
            print(f"freed: {', '.join(parts)}")
        else:
            print(f"would free: {', '.join(parts)}; the same command with --yes does it")
