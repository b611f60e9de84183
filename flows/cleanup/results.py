"""Results that DVC's cache holds too, and the scratch of what is finished."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.hashing import Hasher
from flows.jobs import UNKNOWN, list_jobs
from flows.locks import IdentityLock
from flows.store import Manifest, Store, remove
from flows.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """A folder that goes."""

    kind: str
    """`results` or `scratch`."""
    path: Path


def collect(workspace: Workspace, cache: Path, *, ended: bool, delete: bool) -> Iterator[Removal]:
    """Yield what is cached or finished, one identity at a time; what is in use stays.

    Args:
        workspace: whose home is looked through.
        cache: DVC's cache.
        ended: also what jobs left that ended without a result.
        delete: remove each as soon as the next is asked for.
    """
    store = open_store(workspace)
    finished = {path.parent.name for path in workspace.results.glob("*/manifest.json")}
    jobs = {job.identity: job for job in list_jobs(workspace)}
    for identity in sorted(finished | set(jobs)):
        if identity in jobs and jobs[identity].state in ("running", UNKNOWN):
            continue
        lock = IdentityLock(workspace.scratch(identity))
        if not lock.acquire():
            continue
        try:
            for one in list(_removable(workspace, store, identity, cache, ended=ended)):
                yield one
                if delete:
                    remove(one.path)
            if delete and not workspace.scratch(identity).exists():
                lock.remove()
        finally:
            lock.release()


def open_store(workspace: Workspace) -> Store:
    """Return the result store of a workspace."""
    return Store(workspace.results, Hasher(workspace.home / ".scratch" / "hashes.json"))


def _removable(
    workspace: Workspace, store: Store, identity: str, cache: Path, *, ended: bool
) -> Iterator[Removal]:
    manifest = store.read(identity)
    scratch = workspace.scratch(identity)
    if manifest is not None and _is_cached(manifest, cache):
        yield Removal(kind="results", path=store.result(identity))
    recorded = (workspace.lineage / f"{identity}.json").exists()
    if scratch.exists() and (manifest is not None or recorded or ended):
        yield Removal(kind="scratch", path=scratch)
    if store.partial(identity).exists() and (manifest is not None or ended):
        yield Removal(kind="results", path=store.partial(identity))


def _is_cached(manifest: Manifest, cache: Path) -> bool:
    """Tell whether DVC could bring every output back: each file, and the listing of each folder."""
    objects = cache if cache.name == "md5" else cache / "files" / "md5"
    hashes = {md5 for out in manifest.outs.values() for md5 in (out.md5, *out.files.values())}
    return all((objects / md5[:2] / md5[2:]).exists() for md5 in hashes)
