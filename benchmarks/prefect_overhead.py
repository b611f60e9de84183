"""What Prefect and planning cost beside the stages: one JSON line per figure.

Run it in a checkout where everything is up to date, after `make demo` for instance; nothing of it is changed. The cost
per stage is that of cells whose dvc process does nothing, in a real flow on a real server, against the bare processes.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._figures import Figure, at_most, print_figures
from flows.dag import Cell, Plan
from flows.guard import guarded
from flows.planning import Work
from flows.selection import Selection
from flows.servers import prefect_server

NUM_CELLS = 20
IDLE = [sys.executable, "-I", "-S", "-c", "pass"]


def per_stage(root: Path) -> Figure:
    """Measure what a cell costs beside its process."""
    from uuid import UUID

    from prefect import flow
    from prefect.runtime import flow_run
    from prefect.task_runners import ThreadPoolTaskRunner

    from flows import tasks
    from flows.cell_runs import CellRuns
    from flows.schedule import MAX_AT_ONCE

    tasks.dvc_command = lambda *_, **__: IDLE  # type: ignore[assignment]
    work = idle_work(root)

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=MAX_AT_ONCE))
    def idle() -> float:
        began = time.monotonic()
        CellRuns(work, UUID(str(flow_run.id)), "local", None).run()
        return time.monotonic() - began

    idle()
    wall = idle()
    began = time.monotonic()
    for _ in range(NUM_CELLS):
        subprocess.run(guarded(IDLE), check=True)
    bare = (time.monotonic() - began) / NUM_CELLS
    value = wall / NUM_CELLS
    return Figure(
        name="prefect_per_stage",
        value=(value - bare) * 1000,
        unit="ms",
        baseline=bare * 1000,
        ratio=value / bare,
        target="<= 150",
        passed=(value - bare) * 1000 <= 150,
    )


def idle_work(root: Path) -> Work:
    """Return stale cells that do not read from each other."""
    names = [f"cell-{number}" for number in range(NUM_CELLS)]
    cells = tuple(Cell(name=name, upstream=(), command="") for name in names)
    return Work(
        root=root,
        plan=Plan(cells=cells, stale=frozenset(names)),
        chosen=frozenset(names),
        selection=Selection(),
        needs={},
        approve_above=None,
    )


def planning(root: Path) -> Figure:
    """Measure planning per stage: DVC's graph and status, GPU needs, reasons."""
    from flows.planning import prepare_work

    prepare_work(root, Selection()).planned()
    began = time.monotonic()
    work = prepare_work(root, Selection())
    work.planned()
    seconds = time.monotonic() - began
    return at_most("planning_per_stage", seconds / len(work.plan.cells) * 1000, 150, "ms")


def no_op(root: Path) -> Figure:
    """Measure a whole flow run with nothing to do, on a server that runs, from the command line."""
    command = [sys.executable, "-m", "flows.cli", "run"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Running stage" not in done.stdout + done.stderr, "not everything was up to date"
    return at_most("noop_flow", time.monotonic() - began, 10, "s")


@contextmanager
def server() -> Iterator[None]:
    """Run a Prefect server of our own, on an empty database."""
    with tempfile.TemporaryDirectory() as folder, prefect_server(Path(folder)) as made:
        os.environ |= made.environment | {"AFM_LINEAGE": "0", "PREFECT_LOGGING_LEVEL": "ERROR"}
        yield


def figures(root: Path) -> Iterator[Figure]:
    """Yield every figure."""
    plan = planning(root)
    yield plan
    with server():
        yield no_op(root)
        task = per_stage(root)
    yield task
    yield at_most("planning_and_prefect_per_stage", plan.value + task.value, 150, "ms")


if __name__ == "__main__":
    print_figures(figures(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
