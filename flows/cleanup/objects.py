"""The objects of DVC's cache and remote that nothing reaches. Speaks to DVC itself, as flows.dag does.

`dvc gc` can be told of one revision beside branches and tags, and of no single object, so it would take models that
only an alias names and inputs of running jobs. The parts that it is made of are used here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreached:
    """Objects that nothing reaches."""

    kind: str
    """`cache` or `remote`."""
    paths: tuple[str, ...]
    size: Callable[[str], int]
    """Of one of the paths [bytes]."""
    delete: Callable[[], None]


@contextmanager
def unreached(
    root: Path,
    *,
    revisions: Sequence[str],
    md5s: Collection[str],
    contents: Mapping[str, Collection[str]],
    others: Sequence[Path],
    kinds: Collection[str],
) -> Iterator[list[Unreached]]:
    """Find them, and keep every dvc of these checkouts from adding any until the block ends.

    Args:
        root: folder of dvc.yaml.
        revisions: commits whose outputs stay; those of the workspace stay anyhow.
        md5s: further objects that stay, as far as they are in the cache or the remote.
        contents: files of folders whose listing may be missing.
        others: checkouts whose workspaces' outputs stay.
        kinds: `cache`, `remote` (the default one).

    Raises:
        UserError: a revision or another checkout cannot be read, or what a folder held cannot be told.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    with ExitStack() as stack:
        try:
            repos = [Repo(str(one), _wait_for_lock=True) for one in (root, *others)]
            for repo in repos:
                stack.callback(repo.close)
                stack.enter_context(lock_repo(repo))
            named = _outputs(repos[0], revisions).union(*map(_outputs, repos[1:]))
            kept = _with_files(repos[0], named, md5s, contents, kinds)
            parts = [_rest(repos[0], kind, kept) for kind in kinds]
        except (DvcException, OSError) as error:
            raise UserError(
                f"neither cache nor remote is touched, since DVC cannot tell what is in use: {error}"
            ) from error
        yield parts


def _outputs(repo: Any, revisions: Sequence[str] = ()) -> set[str]:
    """Return the md5s of all outputs that DVC keeps, of the workspace and of some commits."""
    found: set[str] = set()
    for _ in repo.brancher(revs=list(revisions)):
        found |= {out.hash_info.value for out in repo.index.outs if out.use_cache and out.hash_info}
    return found


def _with_files(
    repo: Any,
    named: Collection[str],
    md5s: Collection[str],
    contents: Mapping[str, Collection[str]],
    kinds: Collection[str],
) -> set[str]:
    """Add the files of folders. Of `md5s` some are no outputs: a folder that git holds has no listing anywhere.

    Raises:
        UserError: nobody knows the files of an output, and they may be in the remote.
    """
    kept, lost = {*named, *md5s}, []
    for md5 in sorted(one for one in kept if one.endswith(".dir")):
        files = contents.get(md5) or _listed(repo, md5)
        kept |= set(files or ())
        lost += [md5] if files is None and md5 in named else []
    if lost and "remote" in kinds:
        raise UserError(
            f"in use, but neither cache nor remote tells which files belong to it: {', '.join(lost)}; "
            "run `dvc push` where these folders were made, or delete the branches that name them"
        )
    return kept


def _listed(repo: Any, md5: str) -> set[str] | None:
    """Return the md5s of a folder's files, by a listing that may have to be fetched; None where there is none."""
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree

    wanted, cache = HashInfo("md5", md5), repo.cache.local
    if not cache.exists(md5):
        has_remote = bool(repo.config["core"].get("remote"))
        if not has_remote or not repo.cloud.get_remote_odb().exists(md5):
            return None
        repo.cloud.pull([wanted])
    return {file.value for _, _, file in Tree.load(cache, wanted)}


def _rest(repo: Any, kind: str, kept: Collection[str]) -> Unreached:
    from dvc_data.hashfile.db import get_index
    from dvc_data.hashfile.gc import gc
    from dvc_data.hashfile.hash_info import HashInfo

    objects = repo.cache.local if kind == "cache" else repo.cloud.get_remote_odb(command="gc")

    def delete() -> None:
        gc(objects, [HashInfo("md5", md5) for md5 in kept])
        if kind == "remote":
            get_index(objects).clear()  # else DVC would take them for pushed

    gone = tuple(objects.oid_to_path(md5) for md5 in objects.all() if md5 not in kept)
    return Unreached(kind=kind, paths=gone, size=objects.fs.size, delete=delete)
