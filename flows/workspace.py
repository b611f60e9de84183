"""Where things lie: the checkout that runs, and the home that keeps results, scratch, records and environments."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError

LINEAGE = ".lineage"
"""Folder of the run records in a home, and in the commits of run branches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """One checkout. Worktrees and DVC's experiment copies share the home of the checkout they came from."""

    root: Path
    """Folder of dvc.yaml and params.yaml."""
    home: Path
    """Folder of .results, .scratch, .lineage and the environments."""

    @property
    def results(self) -> Path:
        """Finished results, by identity."""
        return self.home / ".results"

    @property
    def lineage(self) -> Path:
        """Run records, by identity."""
        return self.home / LINEAGE

    def scratch(self, identity: str) -> Path:
        """Return where a result's checkpoints and logs lie while it is made."""
        return self.home / ".scratch" / identity

    def relative(self, path: Path) -> Path:
        """Return a path as seen from the checkout, so that no output can depend on where that lies."""
        return Path(os.path.relpath(path, self.root))


def home_of(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home folder of a checkout: AFM_HOME, or the checkout itself."""
    return Path(environ.get("AFM_HOME") or root)


def here(environ: Mapping[str, str] = os.environ) -> Workspace:
    """Return the workspace of the current folder.

    Raises:
        UserError: neither it nor a folder above it holds dvc.yaml and params.yaml.
    """
    start = Path.cwd()
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").exists() and (folder / "params.yaml").exists():
            return Workspace(root=folder, home=home_of(folder, environ))
    raise UserError(f"{start} is not in a checkout: no dvc.yaml and params.yaml there or above")
