"""The cells of a run as Prefect tasks: as many at once as limits allow, each a dvc process in a thread's care."""

import logging
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Cancelled, Crashed, Failed
from prefect.tasks import Task

from flows.approval import is_cancelled, wait_for_approval
from flows.background import BackgroundBranch, BackgroundSync
from flows.branch import RunBranch
from flows.dag import Cell
from flows.executors import OutcomeKind
from flows.planning import Work
from flows.schedule import Ending, Schedule
from flows.tasks import UNREACHABLE, CellCancelled, CellFailed, CellLeft, Stop, run_cell

RETRY_WAITS_S = (30.0, 300.0)
"""How long a retry waits; as many retries [s]."""
PASSING = (OutcomeKind.EVICTED, OutcomeKind.QUOTA, OutcomeKind.UNSCHEDULABLE, UNREACHABLE)
"""Outcomes that another try can mend without anybody changing anything."""
LIMITS = {"local": 1}
"""Cells at once by tag where the server has no such limit: two stages on one laptop only slow each other down."""

TRACEBACKS = ("Task run failed with state", "Engine execution exited with unexpected exception")
"""Messages with the traceback of an exception that there was not; the state beside them says the same."""


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(TRACEBACKS)


for _logger in ("prefect.task_runs", "prefect.flow_runs"):
    logging.getLogger(_logger).addFilter(_is_news)


def _may_pass(_task: "Task[..., Any]", _run: TaskRun, state: State[Any]) -> bool:
    """Tell whether a failed cell is worth another try."""
    return state.name in PASSING


@task(
    task_run_name="{cell}",
    cache_policy=NO_CACHE,
    retries=len(RETRY_WAITS_S),
    retry_condition_fn=_may_pass,
)
def run_stage(
    cell: str, *, root: str, force: bool, run: UUID, control: "Control"
) -> State[Any] | None:
    """Bring one cell up to date.

    Returns:
        Nothing, or how it ended: a failed cell is a state, since its message is all there is to show, not a traceback.
    """
    logger = get_run_logger()
    try:
        if task_run.run_count > 1:
            wait_s = RETRY_WAITS_S[task_run.run_count - 2]
            logger.info("try %d begins in %.0f s", task_run.run_count, wait_s)
            control.stop.wait(wait_s)
        run_cell(
            Path(root),
            cell,
            force=force,
            emit=logger.info,
            is_cancelled=lambda: is_cancelled(run),
            stop=control.stop,
        )
    except CellFailed as error:
        control.tails[cell] = error.tail
        return Failed(name=error.outcome or "Failed", message=str(error))
    except CellCancelled as error:
        return Cancelled(message=str(error))
    except CellLeft as error:
        return Crashed(message=str(error))
    return None


class Control:
    """What the main thread and those of the cells share."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.stop = Stop()
        self.tails: dict[str, tuple[str, ...]] = {}
        """Last lines of the output of each cell that failed."""


class CellRuns:
    """The cells of one flow run, begun as soon as they may."""

    def __init__(self, work: Work, run: UUID, executor: str, branch: RunBranch | None) -> None:
        """Begin nothing yet; asks the server for its limits."""
        self._work, self._run, self._executor = work, run, executor
        self._control = Control()
        self._ended: queue.SimpleQueue[tuple[str, PrefectFuture[Any]]] = queue.SimpleQueue()
        self._schedule = Schedule(
            work.plan.cells, is_wanted=work.is_wanted, tags=self._tags, limits=read_limits()
        )
        self._approved: set[str] = set()
        self._sync = BackgroundSync(work.root)
        self._branch = BackgroundBranch(branch)
        self.messages: dict[str, str] = {}
        """What is said of each cell that failed."""
        self.is_cancelled = False

    @property
    def endings(self) -> Mapping[str, Ending]:
        """What became of each cell."""
        return self._schedule.endings

    @property
    def causes(self) -> Mapping[str, str]:
        """Which failed cell each cell was not begun because of."""
        return self._schedule.causes

    @property
    def tails(self) -> Mapping[str, tuple[str, ...]]:
        """Last lines of the output of each cell that failed."""
        return self._control.tails

    def run(self) -> None:
        """Run until every cell has an ending.

        Raises:
            NotApproved: nobody allowed a costly stage; what ran has ended.
            BaseException: whatever ended this process from outside, Ctrl-C for instance, after its cells have ended.
        """
        try:
            while not self._schedule.is_over:
                self._begin_some()
                if self._schedule.running:
                    self._settle(*self._ended.get())
        except CellCancelled:
            self.is_cancelled = True
            self._schedule.drop_the_rest()
        except BaseException as error:
            self._stop(intent=isinstance(error, KeyboardInterrupt) or is_cancelled(self._run))
            raise
        finally:
            try:
                self._sync.close()
            finally:
                self.messages |= self._branch.close()

    def _begin_some(self) -> None:
        startable = self._schedule.startable()
        waiting = [cell for cell in startable if self._must_ask(cell)]
        ready = [cell for cell in startable if cell not in waiting]
        if waiting and not ready and not self._schedule.running:
            self._ask_for(waiting)
            ready = [cell for cell in waiting if cell.name in self._approved]
        for cell in ready:
            self._begin(cell)

    def _must_ask(self, cell: Cell) -> bool:
        return cell.name not in self._approved and self._work.needs_approval(cell.name)

    def _ask_for(self, cells: list[Cell]) -> None:
        """Wait for a yes to all of some cells, at a moment when nothing else could run."""
        costs = ", ".join(f"{cell.name} may take {self._work.needs[cell.name]}" for cell in cells)
        message = f"waiting for approval: {costs}; resume this flow run to allow it, or cancel it"
        get_run_logger().info(message)
        wait_for_approval(self._run, message, self._control.stop)
        self._approved |= {cell.name for cell in cells}

    def _begin(self, cell: Cell) -> None:
        self._schedule.begin(cell)
        self._sync.start()
        tagged = run_stage.with_options(tags=self._tags(cell))
        future = tagged.submit(
            cell.name,
            root=str(self._work.root),
            force=self._work.selection.force and cell.name in self._work.chosen,
            run=self._run,
            control=self._control,
        )
        future.add_done_callback(lambda done: self._ended.put((cell.name, done)))

    def _tags(self, cell: Cell) -> frozenset[str]:
        """Return what can have a limit, and no more: Prefect starts a client of its own for each new set of tags."""
        return frozenset({self._executor, *(["gpu"] if cell.name in self._work.needs else [])})

    def _settle(self, name: str, future: "PrefectFuture[Any]") -> None:
        future.wait()  # it is done: this takes its state over, or raises what broke it
        state = future.state
        if state.is_completed():
            self._schedule.end(name, Ending.RAN)
            self._branch.ask(name)
        elif state.is_cancelled() or is_cancelled(self._run):
            self._schedule.end(name, Ending.CANCELLED)
            self.messages[name] = state.message or ""
            self.is_cancelled = True
            self._stop(intent=True)
        else:
            self._schedule.end(name, Ending.FAILED)
            self.messages[name] = state.message or f"{name} failed"

    def _stop(self, *, intent: bool) -> None:
        """End the cells that run, and begin no more; wait for them, through further Ctrl-C too."""
        self._control.stop.ask(intent=intent)
        self._schedule.drop_the_rest()
        while self._schedule.running:
            try:
                name, _ = self._ended.get()
            except KeyboardInterrupt:
                self._control.stop.ask(intent=True)
            else:
                self._schedule.end(name, Ending.CANCELLED)


def read_limits() -> dict[str, int]:
    """Return how many cells may run at once by tag, as the server has it; it enforces them across runs."""
    limits = dict(LIMITS)
    with get_client(sync_client=True) as client:
        for tag in ("local", "gpu"):
            try:
                found = client.read_concurrency_limit_by_tag(tag)
            except ObjectNotFound:
                continue
            limits[tag] = found.concurrency_limit
    return limits
