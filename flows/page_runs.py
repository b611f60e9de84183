"""The audit page of a flow run, made after its last sync: what goes wrong is a warning, never a failed run."""

import os
import subprocess
import sys
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from flows.artifacts import artifact_link
from flows.audit_page.place import PAGE
from flows.background import BackgroundSync
from flows.environment import quiet_environment

TIMEOUT_S = 120.0
EXIT_USER_ERROR = 2


def publish_page(root: Path, run: str) -> None:
    """Write the page, keep it in MLflow, and link it from this flow run; nothing where AFM_LINEAGE=0."""
    if os.environ.get("AFM_LINEAGE", "1") == "0":
        return
    before = _stamp(root / PAGE)
    failure = write_page(root)
    if failure:
        get_run_logger().warning(failure)
        return
    if _stamp(root / PAGE) != before:
        _log(root)
    create_markdown_artifact(
        key="audit", markdown=page_text(root, run), description="What made these models"
    )


def write_page(root: Path) -> str | None:
    """Write the page in a process of its own, as `afm report` does.

    Returns:
        Why there is none: what the user can mend in one line, anything else with all that it printed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "report"],
            cwd=root,
            env=quiet_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return (
            f"audit page: not ready in {TIMEOUT_S:.0f} s; the run goes on, run `afm report` later"
        )
    if done.returncode == 0:
        return None
    said = done.stderr.strip()
    lines = (
        said.splitlines()[-1:]
        if done.returncode == EXIT_USER_ERROR
        else [f"exit code {done.returncode}", said]
    )
    return "\n".join(
        [
            f"audit page: not written; the run goes on, run `afm report` later: {lines[0]}",
            *lines[1:],
        ]
    )


def page_text(root: Path, run: str) -> str:
    """Say where the page is, with a link to MLflow's copy where a server has it."""
    link = artifact_link(root, run, Path(PAGE).name)
    return f"Audit page: `{root / PAGE}`" + (f", [in MLflow]({link})" if link else "")


def _stamp(page: Path) -> tuple[int, int] | None:
    """Return what changes with every writing of a file; None where there is none."""
    if not page.exists():
        return None
    state = page.stat()
    return state.st_ino, state.st_mtime_ns


def _log(root: Path) -> None:
    sync = BackgroundSync(root)
    sync.start()
    sync.close()
