"""Flow runs whose process was killed: Prefect's server shows them as running for ever unless somebody tells it."""

import contextlib
import os
import socket
from pathlib import Path
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Crashed
from pydantic import ValidationError

from flows.attempts import ATTEMPT, Attempt
from flows.executors import make_executor
from flows.executors.processes import is_alive
from flows.jobs import UNKNOWN, as_job, list_jobs
from flows.workspace import Workspace, home_of

HOST, PID, BEGAN = "afm.host", "afm.pid", "afm.began"
"""Labels of a flow run: which process it is."""
UNFINISHED = [StateType.RUNNING, StateType.PENDING, StateType.PAUSED, StateType.CANCELLING]


def claim(run: str) -> None:
    """Say that this process is the flow run; end those in Prefect's records whose process on this machine is gone."""
    began = psutil.Process().create_time()
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(
            UUID(run), {HOST: socket.gethostname(), PID: os.getpid(), BEGAN: began}
        )
        unfinished = FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED))
        )
        for other in client.read_flow_runs(flow_run_filter=unfinished):
            if _is_dead(other):
                _bury(client, other)


def _is_dead(run: FlowRun) -> bool:
    if run.labels.get(HOST) != socket.gethostname() or not {PID, BEGAN} <= run.labels.keys():
        return False
    return not is_alive(int(run.labels[PID]), float(run.labels[BEGAN]))


def _bury(client: SyncPrefectClient, run: FlowRun) -> None:
    state: State[None] = Crashed(
        message="its process was killed; the next run goes on from what it left"
    )
    unfinished = TaskRunFilter(
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))
    )
    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])), task_run_filter=unfinished
    )
    for task in tasks:
        client.set_task_run_state(task.id, state, force=True)
    client.set_flow_run_state(run.id, state, force=True)


def end_jobs_of(root: Path, pipeline_run: str) -> None:
    """End every job that a run of the flow has started and that is still at work; checkpoints stay."""
    workspace = Workspace(root=root, home=home_of(root))
    for job in list_jobs(workspace):
        active = job.state in ("running", UNKNOWN)
        if active and _started_by(workspace.scratch(job.identity)) == pipeline_run:
            make_executor({"AFM_EXECUTOR": job.executor}).cancel(as_job(workspace, job))


def _started_by(scratch: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError, ValidationError):
        text = (scratch / ATTEMPT).read_text(encoding="utf-8")
        return Attempt.model_validate_json(text).pipeline_run
    return None
