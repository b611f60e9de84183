"""What logging to MLflow costs a stage, on SQLite: one JSON line per figure.

The records have the shape of a DAPO run: 60 params, 40 metrics and a curve of 15 values a step. Importing mlflow and
making the database are not counted; the requests counted are those beside the begin and the end of a run.
"""

import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._figures import Figure, at_most, print_figures
from flows import lineage
from flows.hashing import file_md5
from flows.lineage_live import LiveCurves
from flows.lineage_log import MAX_METRICS, StudyLog
from flows.lineage_view import StageRun, stage_run
from tests.support.live_curves import ID, begin
from tests.support.records import MODEL, record

NUM_RUNS = 10
NUM_STEPS, NUM_KEYS = 200, 15
NUM_FLUSHES, ROWS_PER_FLUSH = 50, 20
STEPS = "data/dapo/mhqa-tiny/steps.jsonl"


class Counted:
    """An MLflow client that counts its requests."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._client, name)

        def counted(*words: Any, **more: Any) -> Any:
            self.requests[name] += 1
            return method(*words, **more)

        return counted


def rows(first: int, last: int) -> str:
    """Return some steps of a curve."""
    return "".join(
        json.dumps({"step": step, **{f"key_{key}": step / (key + 1) for key in range(NUM_KEYS)}})
        + "\n"
        for step in range(first, last)
    )


def finished(root: Path, identity: str, num_steps: int) -> StageRun:
    """Return a finished run with a curve."""
    steps = root / STEPS
    steps.parent.mkdir(parents=True, exist_ok=True)
    steps.write_text(rows(0, num_steps))
    made = record(
        "dapo",
        identity=identity,
        params={f"key_{key}": key for key in range(60)},
        metrics={f"dapo/{key}": float(key) for key in range(40)},
        outs={"data/models/rl/mhqa-tiny": MODEL, STEPS: file_md5(steps)},
    )
    return stage_run(made, root)


def whole_runs(root: Path) -> Iterator[Figure]:
    """Log runs whole, as a sync does that comes after the stage."""
    client = Counted(lineage._client(root))
    log = StudyLog(client, "whole")  # type: ignore[arg-type]
    runs = [finished(root, f"id-{number}", NUM_STEPS) for number in range(NUM_RUNS + 1)]
    log.finish(runs.pop())  # begins the pipeline run
    client.requests.clear()
    seconds = [seconds_of(log.finish, run) for run in runs]
    yield at_most("mlflow_seconds_per_stage", statistics.median(seconds), 1.0, "s")
    values = NUM_STEPS * NUM_KEYS + len(runs[0].metrics)
    bar = -(-values // MAX_METRICS) + 1  # the params are a request of their own
    per_run = client.requests["log_batch"] / NUM_RUNS
    yield at_most("mlflow_log_requests_per_stage", per_run, bar, "requests")


def live_curves(root: Path) -> Iterator[Figure]:
    """Show a curve while it grows, then finish the run."""
    client = Counted(lineage._client(root))
    log = StudyLog(client, "live")  # type: ignore[arg-type]
    curves, steps = LiveCurves(home=root), begin(root)
    seconds = []
    for number in range(NUM_FLUSHES):
        with steps.open("a") as file:
            file.write(rows(number * ROWS_PER_FLUSH, (number + 1) * ROWS_PER_FLUSH))
        seconds.append(seconds_of(curves.flush, lambda: log))
    per_flush = client.requests["log_batch"] / NUM_FLUSHES
    yield at_most("mlflow_requests_per_flush", per_flush, 1, "requests")
    yield at_most("mlflow_seconds_per_flush", statistics.median(seconds), 0.5, "s")
    run = finished(root, ID, NUM_FLUSHES * ROWS_PER_FLUSH)
    shown = log.shown(ID)[ID]
    yield at_most("mlflow_seconds_to_finish", seconds_of(log.finish, run, shown.run_id), 1.0, "s")
    curves.close(log)


def seconds_of(do: Callable[..., object], *words: object) -> float:
    """Return how long a call takes [s]."""
    start = time.perf_counter()
    do(*words)
    return time.perf_counter() - start


def main() -> Iterator[Figure]:
    """Measure in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="afm-lineage-") as folder:
        root = Path(folder)
        subprocess.run(["git", "init", "-q", folder], check=True)
        lineage._client(root).search_experiments()
        yield from whole_runs(root)
        yield from live_curves(root)


if __name__ == "__main__":
    print_figures(main())
