"""The Prefect flow: one task per cell, each a dvc process, several at once; lineage beside them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from afm.errors import UserError
from flows.approval import NotApproved, is_cancelled
from flows.artifacts import publish_endings, publish_failure, publish_plan, publish_results
from flows.branch import open_branch
from flows.cell_runs import CellRuns
from flows.dvc_files import mend
from flows.environment import interpreter
from flows.executors import EXECUTORS
from flows.identity import load_stage
from flows.page_runs import publish_page
from flows.planning import Work, prepare_work
from flows.prefect_runs import claim, end_jobs_of
from flows.schedule import MAX_AT_ONCE
from flows.selection import Selection
from flows.workspace import home_of

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
MANY_STAGES = 4
"""So many are counted in a run's name, not listed."""
BAD_INPUT = "BadInput"
"""Name of the state of a flow run that never began, because of something the user can mend."""

ROOT = Path(os.environ.get("AFM_ROOT", Path(__file__).resolve().parent.parent))
"""Folder of dvc.yaml: the checkout that this module was imported from, unless AFM_ROOT says otherwise."""

Result = dict[str, str] | State[dict[str, str]]
"""What happened to each cell, or how the run ended where it did not get that far."""


def run_name() -> str:
    """Name a flow run by what it brings up to date, and by its own first digits."""
    given = flow_run.parameters
    words = [
        str(word) for name in ("targets", "agents", "scales") for word in given.get(name) or ()
    ]
    stages = [str(stage) for stage in given.get("stages") or ()]
    words += stages if len(stages) < MANY_STAGES else [f"{len(stages)} stages"]
    return f"{' '.join(words) or 'everything'} {str(flow_run.id)[:8]}"


def end_jobs(_flow: "Flow[..., Any]", run: FlowRun, _state: State[Any]) -> None:
    """End the jobs of a run that was cancelled, where its own process did not get to that.

    A worker calls it when the process has ended, also when the worker itself is told to end: that is no intent.
    """
    if is_cancelled(run.id):
        end_jobs_of(ROOT, run.id.hex)


OPTIONS: dict[str, Any] = {
    "task_runner": ThreadPoolTaskRunner(max_workers=MAX_AT_ONCE),
    "flow_run_name": run_name,
    "validate_parameters": True,
    "on_cancellation": [end_jobs],
}
"""Of every flow here and in flows.deployments."""


@flow(name="pipeline", **OPTIONS)
def pipeline(
    targets: list[str] | None = None,
    agents: list[str] | None = None,
    scales: list[str] | None = None,
    stages: list[str] | None = None,
    force: bool = False,
    allow_code_rerun: bool = False,
) -> Result:
    """Bring the pipeline up to date.

    Args:
        targets: cells (`sft@mhqa-tiny`) or whole stages (`sft`) to bring up to date with all they read; default all.
        agents: of these, only cells of some agents.
        scales: of these, only cells of some scales.
        stages: of these, only some stages.
        force: ask for these cells again even where nothing changed.
        allow_code_rerun: let GPU stages run again where nothing but code has changed.

    Returns:
        What happened to each cell: `ran` or `unchanged`; or how the run ended, where it did not get that far.
    """
    selection = Selection(
        targets=tuple(targets or ()),
        agents=tuple(agents or ()),
        scales=tuple(scales or ()),
        stages=tuple(stages or ()),
        force=force,
        allow_code_rerun=allow_code_rerun,
    )
    return bring_up_to_date(selection)


def bring_up_to_date(selection: Selection) -> Result:
    """Run what is chosen and stale, with all it reads, in the flow run that calls this."""
    run = UUID(str(flow_run.id))
    os.environ["AFM_PIPELINE_RUN"] = run.hex
    claim(str(run))
    for line in mend(ROOT):
        get_run_logger().warning(line)
    try:
        executor = _executor()
        branch = open_branch(ROOT, run.hex) if executor == "kubernetes" else None
        work = prepare_work(ROOT, selection)
        _require_environments(work, executor)
        refusal = work.refusal()
    except UserError as error:
        refusal = str(error)
    if refusal:
        return Failed(name=BAD_INPUT, message=refusal)
    publish_plan(work.planned())
    return _run(CellRuns(work, run, executor, branch), work.root, run)


def _run(cells: CellRuns, root: Path, run: UUID) -> Result:
    refused = None
    try:
        cells.run()
    except NotApproved as error:
        refused = str(error)
    publish_endings(cells.endings, cells.causes)
    if cells.messages:
        publish_failure(cells.messages, cells.tails)
    publish_results(root, run.hex)
    if not cells.is_cancelled:
        publish_page(root, run.hex)
    return _ended(cells, refused) or {name: str(ending) for name, ending in cells.endings.items()}


def _ended(cells: CellRuns, refused: str | None) -> State[Any] | None:
    """Return the state of a run that did not bring everything up to date."""
    said = "; ".join([*cells.messages.values(), *filter(None, [refused])])
    if cells.is_cancelled:
        return Cancelled(message=said or "the flow run was cancelled")
    if not said:
        return None
    lost = [f"{name} (because of {cause})" for name, cause in cells.causes.items()]
    return Failed(message=f"{said}; not begun: {', '.join(lost)}" if lost else said)


def _executor() -> str:
    """Return where stages run.

    Raises:
        UserError: there is no such executor.
    """
    name = os.environ.get("AFM_EXECUTOR") or "local"
    if name not in EXECUTORS:
        raise UserError(f"executor {name!r} is unknown; there are {', '.join(EXECUTORS)}")
    return name


def _require_environments(work: Work, executor: str) -> None:
    """Look for the interpreters of all that may run on this machine: better now than hours later.

    Raises:
        UserError: one is not installed.
    """
    if executor != "local":
        return
    home = home_of(ROOT)
    for cell in work.will_run().values():
        if cell.command.split()[0] == "bin/submit":
            interpreter(os.environ, load_stage(cell.module).environment, home)


def main(words: list[str], call: Callable[..., State[Any]] = pipeline) -> int:
    """Run the flow once, for what a selection in JSON says.

    Exit codes: 0 done; 1 a stage failed; 2 bad input; 130 interrupted or cancelled.
    """
    selection = Selection.model_validate_json(words[0]) if words else Selection()
    try:
        state = call(**selection.model_dump(mode="json"), return_state=True)
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
