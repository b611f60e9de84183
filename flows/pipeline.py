"""The Prefect flow: one task per cell, each a dvc process; lineage after each."""

import os
import sys
import uuid
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.dag import Cell, Plan, read_plan
from flows.results import read_results
from flows.tasks import run_cell

ROOT = Path(os.environ.get("AFM_ROOT", Path(__file__).resolve().parent.parent))
"""Folder of dvc.yaml: the checkout that this module was imported from, unless AFM_ROOT says otherwise."""


def _run_name() -> str:
    """Name a flow run by what it brings up to date."""
    targets = flow_run.parameters.get("targets")
    return " ".join(targets) if targets else "everything"


@task(task_run_name="{cell}")
def run_stage(cell: str, force: bool) -> None:
    """Bring one cell up to date and send its run record to MLflow."""
    from flows.lineage import sync_quietly

    logger = get_run_logger()
    run_cell(ROOT, cell, force=force, emit=logger.info)
    for warning in sync_quietly(ROOT):
        logger.warning(warning)


@flow(name="pipeline", flow_run_name=_run_name, validate_parameters=True)
def pipeline(targets: list[str] | None = None, force: bool = False) -> dict[str, str]:
    """Bring the pipeline up to date.

    Args:
        targets: cells (`sft@mhqa-tiny`) or whole stages (`sft`) to bring up to date with all they read; default all.
        force: run the targeted cells even where nothing changed.

    Returns:
        What happened to each cell: `ran` or `unchanged`.
    """
    os.environ.setdefault("AFM_PIPELINE_RUN", uuid.uuid4().hex)
    plan = read_plan(ROOT, targets or [])
    outcomes = _run_plan(plan, force)
    _publish_artifacts(outcomes)
    return outcomes


def _run_plan(plan: Plan, force: bool) -> dict[str, str]:
    """Run stale cells, and those below a cell that ran; DVC itself decides whether the latter have changed."""
    logger = get_run_logger()
    outcomes: dict[str, str] = {}
    for cell in plan.cells:
        if force or _may_be_stale(cell, plan, outcomes):
            run_stage.with_options(tags={f"stage:{cell.stage}", "local"})(cell.name, force)
            outcomes[cell.name] = "ran"
        else:
            logger.info("%s is unchanged", cell.name)
            outcomes[cell.name] = "unchanged"
    return outcomes


def _may_be_stale(cell: Cell, plan: Plan, outcomes: dict[str, str]) -> bool:
    return cell.name in plan.stale or any(outcomes.get(name) == "ran" for name in cell.upstream)


def _publish_artifacts(outcomes: dict[str, str]) -> None:
    create_table_artifact(
        key="cells",
        table=[{"cell": name, "outcome": outcome} for name, outcome in outcomes.items()],
        description="What happened to each cell of the pipeline",
    )
    results = read_results(ROOT)
    if results:
        create_table_artifact(
            key="results", table=[row.as_dict() for row in results], description="Held-out queries"
        )
    page = ROOT / "data" / "report" / "report.html"
    if page.exists():
        create_markdown_artifact(key="report", markdown=f"Report page: `{page}`")


if __name__ == "__main__":
    pipeline(targets=sys.argv[1:] or None)
