"""git: who commits, what is not committed, and whether the remote answers."""

import os
import subprocess
from collections.abc import Iterator

from flows.doctor.finding import Finding, Site, ok, problem, warning
from flows.git import LOCK

TOPIC = "git"
REMOTE_TIMEOUT_S = 20.0
SHOWN = 5


def check(site: Site) -> Iterator[Finding]:
    """Look at the checkout."""
    if _git(site, "rev-parse", "--git-dir") is None:
        yield problem(TOPIC, f"{site.root} is no git repository", "clone the project with git")
        return
    yield _tree(site)
    yield _user(site)
    yield _remote(site)


def _tree(site: Site) -> Finding:
    changed = (_git(site, "status", "--porcelain") or "").splitlines()
    dirty = sorted(line[3:] for line in changed if line[3:] != LOCK)
    commit = _git(site, "rev-parse", "--short", "HEAD")
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
    lacking = [key for key in ("user.name", "user.email") if not _git(site, "config", key)]
    if lacking:
        todo = "; ".join(f"git config {key} ..." for key in lacking)
        return warning(TOPIC, f"{' and '.join(lacking)} not set, so runs commit as afm", todo)
    name, email = _git(site, "config", "user.name"), _git(site, "config", "user.email")
    return ok(TOPIC, f"commits as {name} <{email}>")


def _remote(site: Site) -> Finding:
    url = _git(site, "config", "remote.origin.url")
    if not url:
        return warning(
            TOPIC, "no remote origin: branches of runs stay here", "git remote add origin URL"
        )
    answer = _git(site, "ls-remote", "--heads", "origin")
    if answer is None:
        todo = "see `git ls-remote origin`"
        return problem(TOPIC, "the remote origin does not answer, or refuses", todo)
    return ok(TOPIC, "the remote origin answers")


def _git(site: Site, *words: str) -> str | None:
    """Return what git prints; None where it fails or takes too long."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=site.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=REMOTE_TIMEOUT_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None
