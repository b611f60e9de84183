"""DVC: its cache links with the results, and its remote answers."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from afm.errors import UserError
from flows.commands._dvc import dvc
from flows.doctor.finding import Finding, Site, ok, problem, warning

TOPIC = "dvc"
LINKS = frozenset({"hardlink", "symlink"})
"""Kinds that most filesystems have, unlike reflinks."""


def check(site: Site) -> Iterator[Finding]:
    """Look at DVC's configuration.

    Raises:
        UserError: DVC refuses to read it.
    """
    if not (site.root / ".dvc").exists():
        yield problem(TOPIC, f"{site.root} is no DVC repository", "check .dvc out again")
        return
    settings = dict(
        line.split("=", 1)
        for line in dvc(site.root, "config", "--list").splitlines()
        if "=" in line
    )
    yield _cache_type(settings)
    yield _links(site, site.root / dvc(site.root, "cache", "dir").strip())
    yield _remote(site, settings)


def _cache_type(settings: dict[str, str]) -> Finding:
    # DVC prints a list as Python would, unless it is quoted.
    kinds = re.findall(r"\w+", settings.get("cache.type", "reflink,copy"))
    shown = ",".join(kinds)
    if not LINKS & {*kinds}:
        text = f"cache.type is {shown}: where the filesystem has no reflinks, every output lies there twice"
        return warning(TOPIC, text, "dvc config cache.type reflink,hardlink")
    return ok(TOPIC, f"cache.type is {shown}")


def _links(site: Site, cache: Path) -> Finding:
    """Link a file from the home of .results into the cache, as publishing and committing a result do."""
    ends = (_existing(site.home / ".results"), _existing(cache))
    try:
        with tempfile.NamedTemporaryFile(dir=ends[0]) as source:
            target = ends[1] / Path(source.name).name.replace("tmp", "afm-doctor-")
            os.link(source.name, target)
            target.unlink()
    except OSError as error:
        text = f"{ends[0]} and {ends[1]} share no hard links ({error.strerror})"
        todo = "put .results (AFM_HOME), DVC's cache and the checkout on one writable filesystem"
        return problem(TOPIC, text, todo)
    return ok(TOPIC, f"results and the cache {cache} share hard links")


def _existing(path: Path) -> Path:
    """Return a folder, or the nearest above it that there is."""
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.is_dir())


def _remote(site: Site, settings: dict[str, str]) -> Finding:
    name = settings.get("core.remote")
    if not name:
        text = "no default remote: outputs are on this machine alone"
        return warning(TOPIC, text, "dvc remote add -d NAME URL")
    try:
        dvc(site.root, "ls-url", f"remote://{name}")
    except UserError as error:
        if "does not exist" in str(error):
            todo = "the first `dvc push` makes it; where something was pushed, look at its address"
            return warning(TOPIC, f"the remote {name} is empty or not there", todo)
        return problem(
            TOPIC, f"the remote {name} does not answer: {error}", f"dvc remote modify {name} ..."
        )
    return ok(TOPIC, f"the remote {name} answers")
