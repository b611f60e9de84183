"""The Prefect flow: one task per cell, each a dvc process; lineage after each."""

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed

from afm.errors import UserError
from flows.dag import Cell, Plan, read_plan
from flows.dvc_files import mend
from flows.environment import interpreter
from flows.identity import load_stage
from flows.prefect_runs import claim
from flows.results import read_results
from flows.tasks import CellCancelled, CellFailed, run_cell

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
BAD_INPUT = "BadInput"
"""Name of the state of a flow run that never began, because of something the user can mend."""

logging.getLogger("prefect.task_runs").addFilter(
    # The state that follows says the same, without the traceback of an exception that there was not.
    lambda record: not record.getMessage().startswith("Task run failed with state")
)

ROOT = Path(os.environ.get("AFM_ROOT", Path(__file__).resolve().parent.parent))
"""Folder of dvc.yaml: the checkout that this module was imported from, unless AFM_ROOT says otherwise."""


def _run_name() -> str:
    """Name a flow run by what it brings up to date."""
    targets = flow_run.parameters.get("targets")
    return " ".join(targets) if targets else "everything"


@task(task_run_name="{cell}")
def run_stage(cell: str, force: bool) -> State[Any] | None:
    """Bring one cell up to date and send its run record to MLflow.

    Returns:
        Nothing, or how it ended: a failed cell is a state, since its message is all there is to show, not a traceback.
    """
    from flows.lineage import sync_quietly

    logger = get_run_logger()
    try:
        run_cell(ROOT, cell, force=force, emit=logger.info, is_cancelled=_is_cancelled)
    except CellFailed as error:
        return Failed(message=str(error))
    except CellCancelled as error:
        return Cancelled(message=str(error))
    if os.environ.get("AFM_LINEAGE", "1") != "0":
        for warning in sync_quietly(ROOT):
            logger.warning(warning)
    return None


def _is_cancelled() -> bool:
    """Ask whether someone has cancelled this flow run; no answer is no intent."""
    if flow_run.id is None:
        return False
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run.id).state
    except (httpx.HTTPError, PrefectHTTPStatusError):
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


@flow(name="pipeline", flow_run_name=_run_name, validate_parameters=True)
def pipeline(
    targets: list[str] | None = None, force: bool = False
) -> dict[str, str] | State[dict[str, str]]:
    """Bring the pipeline up to date.

    Args:
        targets: cells (`sft@mhqa-tiny`) or whole stages (`sft`) to bring up to date with all they read; default all.
        force: run the targeted cells even where nothing changed.

    Returns:
        What happened to each cell: `ran` or `unchanged`; or how the run ended, where it did not get that far.
    """
    os.environ.setdefault("AFM_PIPELINE_RUN", uuid.uuid4().hex)
    claim(flow_run.id)
    for line in mend(ROOT):
        get_run_logger().warning(line)
    try:
        plan = read_plan(ROOT, targets or [])
        _require_environments(plan, force)
    except UserError as error:
        return Failed(name=BAD_INPUT, message=str(error))
    outcomes, ended = _run_plan(plan, force)
    _publish_artifacts(outcomes)
    return ended or outcomes


def _run_plan(plan: Plan, force: bool) -> tuple[dict[str, str], State[Any] | None]:
    """Run stale cells, and those below a cell that ran; DVC itself decides whether the latter have changed.

    Returns:
        What happened to each cell, and the state of one that failed or was cancelled: no cell is begun after it.
    """
    logger = get_run_logger()
    outcomes: dict[str, str] = {}
    for cell in plan.cells:
        if not (force or _may_be_stale(cell, plan, outcomes)):
            logger.info("%s is unchanged", cell.name)
            outcomes[cell.name] = "unchanged"
            continue
        tagged = run_stage.with_options(tags={f"stage:{cell.stage}", "local"})
        state = tagged(cell.name, force, return_state=True)
        if not state.is_completed():
            outcomes[cell.name] = state.name.lower() if state.name else "failed"
            return outcomes, _ended(state)
        outcomes[cell.name] = "ran"
    return outcomes, None


def _ended(state: State[Any]) -> State[Any]:
    """Return the flow run's state for that of the cell it ended with."""
    if state.is_cancelled() or _is_cancelled():
        return Cancelled(message=state.message)
    return Failed(message=state.message)


def _require_environments(plan: Plan, force: bool) -> None:
    """Look for the interpreters of all that may run on this machine: better now than hours later.

    Raises:
        UserError: one is not installed.
    """
    home = Path(os.environ.get("AFM_HOME") or ROOT)
    pending: dict[str, str] = {}
    for cell in plan.cells:
        if force or _may_be_stale(cell, plan, pending):
            pending[cell.name] = "ran"
    if os.environ.get("AFM_EXECUTOR", "local") == "local":
        for cell in plan.cells:
            words = cell.command.split()
            if cell.name in pending and words[0] == "bin/submit":
                interpreter(os.environ, load_stage(words[1]).environment, home)


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


def main(targets: Sequence[str]) -> int:
    """Run the flow once.

    Exit codes: 0 done; 1 a stage failed; 2 bad input; 130 interrupted or cancelled.
    """
    try:
        state = pipeline(targets=list(targets) or None, return_state=True)
    except KeyboardInterrupt:
        print("afm: interrupted; what has finished is kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    if state.is_completed():
        return 0
    print(f"afm: {state.message}", file=sys.stderr)
    if state.is_cancelled():
        return EXIT_INTERRUPTED
    return EXIT_USER_ERROR if state.name == BAD_INPUT else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
