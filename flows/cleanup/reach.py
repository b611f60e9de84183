"""What DVC's cache and remote must keep beside what DVC itself can tell: jobs, last results, models with an alias."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import read_json
from flows.attempts import READS
from flows.executors import ClusterError, make_executor
from flows.git import git, git_output
from flows.jobs import UNKNOWN, list_jobs
from flows.records import read_records
from flows.store import Store
from flows.workspace import Workspace

REFS = ("refs/heads", "refs/tags", "refs/remotes", "refs/exps", "refs/stash")
"""Branches of runs (`afm/...`), all other branches and tags, those of git's remotes, DVC's experiments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What must stay."""

    revisions: tuple[str, ...]
    """Commits: everything that their dvc.lock and .dvc files name."""
    checkouts: tuple[Path, ...]
    """Others, as git's worktrees: everything that their dvc.lock and .dvc files name."""
    md5s: frozenset[str]
    """As DVC knows them; `.dir` at the end of a folder's, whose files stay too."""
    contents: Mapping[str, frozenset[str]]
    """md5s of the files of folders whose listing may be in no cache yet."""


def find_reach(
    workspace: Workspace, environ: Mapping[str, str], store: Store, *, aliases: bool
) -> Reach:
    """Ask git, the jobs, the run records and MLflow.

    Raises:
        UserError: one of them cannot be asked; nothing may be removed then.
    """
    md5s = {*_of_jobs(workspace, environ), *_of_last_results(workspace.home)}
    if aliases:
        from flows.aliases import aliased_content

        md5s |= aliased_content(workspace.home)
    return Reach(
        revisions=tuple(_revisions(workspace.root)),
        checkouts=tuple(_checkouts(workspace.root)),
        md5s=frozenset(md5s),
        contents=_contents(workspace, store),
    )


def _of_jobs(workspace: Workspace, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what active jobs read, here and on a cluster.

    Raises:
        UserError: whether a job runs, or what it reads, cannot be told.
    """
    jobs = list_jobs(workspace)
    unknown = [job.cell for job in jobs if job.state == UNKNOWN]
    if unknown:
        raise UserError(
            f"cannot tell whether {', '.join(unknown)} still runs on a cluster that does not answer; try again later"
        )
    running = {job.identity for job in jobs if job.state == "running"}
    for identity in sorted(running | _active_elsewhere(environ)):
        path = workspace.scratch(identity) / READS
        if not path.exists():
            raise UserError(
                f"the active job {identity} does not tell from {workspace.home} what it reads: another home folder's, "
                "or one that is just beginning; wait until it has ended, or end it with `afm cancel`"
            )
        yield from read_json(path).values()


def _active_elsewhere(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the jobs of the executor that is in use now, whoever began them.

    Raises:
        UserError: it does not answer.
    """
    try:
        return make_executor(environ).active()
    except ClusterError as error:
        raise UserError(
            f"cannot tell which jobs run on the cluster: {error}; try again later"
        ) from error


def _of_last_results(home: Path) -> Iterator[str]:
    """Yield what the last finished result of each cell is and was made from: a kill may have kept it from dvc.lock."""
    newest = {record.cell: record for record in read_records(home)}
    for record in newest.values():
        yield from (*record.deps.values(), *record.outs.values())


def _contents(workspace: Workspace, store: Store) -> dict[str, frozenset[str]]:
    found = (store.read(path.parent.name) for path in workspace.results.glob("*/manifest.json"))
    outs = [out for manifest in found if manifest for out in manifest.outs.values()]
    return {out.md5: frozenset(out.files.values()) for out in outs if out.md5.endswith(".dir")}


def _revisions(root: Path) -> list[str]:
    form = "%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)"
    heads = git(root, ["for-each-ref", f"--format={form}", *REFS]).split()
    worktrees = git(root, ["worktree", "list", "--porcelain"]).splitlines()
    heads += [line.split()[1] for line in worktrees if line.startswith("HEAD ")]
    return [commit for commit in dict.fromkeys(heads) if _is_commit(root, commit)]


def _is_commit(root: Path, name: str) -> bool:
    """Tell a commit from a tag on a file, and from the zeros of a branch without one."""
    return git_output(root, ["cat-file", "-t", name]) == "commit"


def _checkouts(root: Path) -> list[Path]:
    """Return git's other worktrees, and the copies that `dvc exp run --temp` works in."""
    lines = git(root, ["worktree", "list", "--porcelain"]).splitlines()
    paths = [Path(line.partition(" ")[2]) for line in lines if line.startswith("worktree ")]
    others = [path for path in paths if path.resolve() != root.resolve()]
    others += [path.parent for path in (root / ".dvc" / "tmp" / "exps").glob("*/*/dvc.yaml")]
    return [path for path in others if (path / ".dvc").exists()]
