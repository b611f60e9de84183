"""`afm gc`: drop results that DVC's cache holds too, the scratch of what is finished, and endpoints without users."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.commands._dvc import dvc
from flows.executors import ClusterError, make_executor
from flows.hashing import Hasher
from flows.jobs import UNKNOWN, list_jobs
from flows.locks import IdentityLock
from flows.store import Manifest, Store, remove
from flows.workspace import Workspace, here

EXIT_UNKNOWN = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm gc`."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument(
        "--ended", action="store_true", help="checkpoints of jobs that ended without a result too"
    )


def run(args: argparse.Namespace) -> int:
    """Free what can be had again without running anything.

    Exit codes: 0 done; 1 the cluster did not tell which endpoints have no users.
    """
    workspace = here()
    cache = Path(dvc(workspace.root, "cache", "dir").strip())
    for line in collect(workspace, workspace.root / cache, ended=args.ended, dry_run=args.dry_run):
        print(line)
    try:
        ended = make_executor(os.environ).tidy(dry_run=args.dry_run)
    except ClusterError as error:
        print(f"cannot tell which endpoints have no users: {error}", file=sys.stderr)
        return EXIT_UNKNOWN
    for what in ended:
        print(f"{'would end' if args.dry_run else 'ended'} {what}")
    return 0


def collect(workspace: Workspace, cache: Path, *, ended: bool, dry_run: bool) -> Iterator[str]:
    """Remove what is cached or finished, one identity at a time, and say so; what is in use stays."""
    store = Store(workspace.results, Hasher(workspace.home / ".scratch" / "hashes.json"))
    finished = {path.parent.name for path in workspace.results.glob("*/manifest.json")}
    jobs = {job.identity: job for job in list_jobs(workspace)}
    for identity in sorted(finished | set(jobs)):
        if identity in jobs and jobs[identity].state in ("running", UNKNOWN):
            continue
        lock = IdentityLock(workspace.scratch(identity))
        if not lock.acquire():
            continue
        paths = list(_removable(workspace, store, identity, cache, ended=ended))
        for path in paths:
            if not dry_run:
                remove(path)
            yield f"{'would remove' if dry_run else 'removed'} {workspace.relative(path)}"
        if not dry_run and not workspace.scratch(identity).exists():
            lock.remove()
        lock.release()


def _removable(
    workspace: Workspace, store: Store, identity: str, cache: Path, *, ended: bool
) -> Iterator[Path]:
    manifest = store.read(identity)
    scratch = workspace.scratch(identity)
    if manifest is not None and _is_cached(manifest, cache):
        yield store.result(identity)
    recorded = (workspace.lineage / f"{identity}.json").exists()
    if scratch.exists() and (manifest is not None or recorded or ended):
        yield scratch
    if store.partial(identity).exists() and (manifest is not None or ended):
        yield store.partial(identity)


def _is_cached(manifest: Manifest, cache: Path) -> bool:
    """Tell whether DVC could bring every output back: each file, and the listing of each folder."""
    objects = cache if cache.name == "md5" else cache / "files" / "md5"
    hashes = {md5 for out in manifest.outs.values() for md5 in (out.md5, *out.files.values())}
    return all((objects / md5[:2] / md5[2:]).exists() for md5 in hashes)
