"""git: who commits, what is not committed, and whether the remote answers."""

from collections.abc import Iterator

from flows.doctor.finding import Finding, Site, ok, problem, warning
from flows.git import git_output
from flows.lock_file import LOCK

TOPIC = "git"
REMOTE_TIMEOUT_S = 20.0
SHOWN = 5


def check(site: Site) -> Iterator[Finding]:
    """Look at the checkout."""
    if git_output(site.root, ["rev-parse", "--git-dir"], REMOTE_TIMEOUT_S) is None:
        yield problem(TOPIC, f"{site.root} is no git repository", "clone the project with git")
        return
    yield _tree(site)
    yield _user(site)
    yield _remote(site)


def _tree(site: Site) -> Finding:
    changed = (
        git_output(site.root, ["status", "--porcelain"], REMOTE_TIMEOUT_S) or ""
    ).splitlines()
    dirty = sorted(line[3:] for line in changed if line[3:] != LOCK)
    commit = git_output(site.root, ["rev-parse", "--short", "HEAD"], REMOTE_TIMEOUT_S)
    if commit is None:
        return problem(TOPIC, "there is no commit yet", "commit the project")
    if not dirty:
        return ok(TOPIC, f"clean at {commit}")
    more = f" and {len(dirty) - SHOWN} more" if len(dirty) > SHOWN else ""
    text = f"differs from {commit}: {', '.join(dirty[:SHOWN])}{more}"
    if site.is_cluster:
        return problem(TOPIC, text, "commit: a cluster runs what a commit holds")
    return warning(TOPIC, text, "commit before a run whose origin is to be proved")


def _user(site: Site) -> Finding:
    lacking = [
        key for key in ("user.name", "user.email") if not git_output(site.root, ["config", key])
    ]
    if lacking:
        todo = "; ".join(f"git config {key} ..." for key in lacking)
        return warning(TOPIC, f"{' and '.join(lacking)} not set, so runs commit as afm", todo)
    name, email = (
        git_output(site.root, ["config", "user.name"], REMOTE_TIMEOUT_S),
        git_output(site.root, ["config", "user.email"], REMOTE_TIMEOUT_S),
    )
    return ok(TOPIC, f"commits as {name} <{email}>")


def _remote(site: Site) -> Finding:
    url = git_output(site.root, ["config", "remote.origin.url"], REMOTE_TIMEOUT_S)
    if not url:
        return warning(
            TOPIC, "no remote origin: branches of runs stay here", "git remote add origin URL"
        )
    answer = git_output(site.root, ["ls-remote", "--heads", "origin"], REMOTE_TIMEOUT_S)
    if answer is None:
        todo = "see `git ls-remote origin`"
        return problem(TOPIC, "the remote origin does not answer, or refuses", todo)
    return ok(TOPIC, "the remote origin answers")
