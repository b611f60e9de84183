"""A second checkout beside this one, with other params: the smoke run and tests must not touch the user's own."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from flows.commands.params import set_params
from flows.git import git
from flows.lock_file import LOCK

SMOKE = {
    "run.scales": "[smoke]",
    "screen.base_scale": "smoke",
    "screen.code_scale": "smoke",
    "screen.num_samples": "2",
    "prepare.counts.mhqa": "{sft: 240, rl: 80, eval: 40}",
    "select.num_queries": "32",
}
"""The same graph on the scale `smoke`, with few queries."""


def make_copy(root: Path, target: Path, settings: Mapping[str, str]) -> None:
    """Make or refresh a checkout of the working tree of `root`, with params set; its environments are ours.

    Results that it already has stay, so running it again runs only what changed.

    Raises:
        UserError: a setting does not fit params.yaml.
    """
    target.mkdir(parents=True, exist_ok=True)
    names = git(root, ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
    wanted = {name for name in names if name and (root / name).is_file()} - {LOCK}
    if (target / ".git").exists():
        for name in set(git(target, ["ls-files", "-z"]).split("\0")) - wanted - {"", LOCK}:
            (target / name).unlink(missing_ok=True)
    else:
        git(target, ["init", "-q"])
    for name in wanted:
        _refresh(root / name, target / name)
    for environment in root.glob(".venv*"):
        if not (target / environment.name).exists():
            (target / environment.name).symlink_to(environment.resolve())
    set_params(target / "params.yaml", [f"{key}={value}" for key, value in settings.items()])
    git(target, ["add", "-A"])
    author = ["-c", "user.name=afm", "-c", "user.email=afm@localhost"]
    git(target, [*author, "commit", "-qm", "copy", "--allow-empty"])


def _refresh(source: Path, target: Path) -> None:
    if not target.exists() or source.read_bytes() != target.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(source, target)
