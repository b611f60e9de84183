"""Which MLflow a checkout logs to, and under which name; asked without loading it."""

import os
from pathlib import Path

from afm.params.root import read_params
from flows.git import git_output
from flows.workspace import home_of


def tracking_uri(root: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or the SQLite database of the checkout's home."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home_of(root) / 'mlflow.db'}"


def artifact_place(root: Path) -> str | None:
    """Return where the files of a study go: beside the database; None leaves it to the server."""
    if not tracking_uri(root).startswith("sqlite:"):
        return None
    return (home_of(root).resolve() / "mlruns" / study_name(root)).as_uri()


def study_name(root: Path) -> str:
    """Return `run.study`, or the git branch, or `detached`."""
    study = read_params(root / "params.yaml").run.study
    if study:
        return study
    return git_output(root, ["symbolic-ref", "--short", "-q", "HEAD"]) or "detached"
