"""`afm run` and `afm demo`: the flow on a laptop, with a Prefect server of its own where none is configured."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from afm.params.root import read_params
from flows.guard import guarded
from flows.results import ResultRow, read_differences, read_results
from flows.servers import prefect_server

ROOT = Path(__file__).resolve().parent.parent


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm run`."""
    parser.add_argument("targets", nargs="*", help="cells or stages; default: the whole pipeline")


def run_command(args: argparse.Namespace) -> int:
    """Run the flow once, through Prefect.

    Exit codes: 0 done; 1 a stage failed; 2 bad input; 130 interrupted or cancelled.

    Raises:
        UserError: params.yaml is wrong anywhere: better now than hours later in another stage.
    """
    read_params(ROOT / "params.yaml")
    with _prefect(ROOT) as environment:
        return _run_flow(ROOT, args.targets, environment)


def demo_command(args: argparse.Namespace) -> int:
    """Run the flow, then print what it measured and how to look at it."""
    code = run_command(args)
    if code == 0:
        print(summary(ROOT))
    return code


def summary(root: Path) -> str:
    """Return the closing table of a finished run: results, differences, times, where to look."""
    lines = ["", *_result_lines(read_results(root)), ""]
    for row in read_differences(root):
        name = row.name.replace("_minus_", " minus ").upper().replace("MINUS", "minus")
        lines.append(f"  {name:<16} {_cell(row.value)}  [{_cell(row.low)}, {_cell(row.high)}]")
    lines += ["", *_time_lines(root), ""]
    lines += [
        f"report: {os.path.relpath(root / 'data' / 'report' / 'report.html')}",
        "Prefect: afm ui prefect",
        "MLflow:  afm ui mlflow",
    ]
    return "\n".join(lines)


@contextmanager
def _prefect(root: Path) -> Iterator[dict[str, str]]:
    """Yield an environment that reaches the configured Prefect server, or one of our own."""
    if "PREFECT_API_URL" in os.environ:
        yield dict(os.environ)
        return
    print("starting a Prefect server ...", file=sys.stderr, flush=True)
    with prefect_server(root) as environment:
        yield environment


def _run_flow(root: Path, targets: Sequence[str], environment: dict[str, str]) -> int:
    """Run the flow in a process that ends when this one does; Ctrl-C ends its job, another end of us does not."""
    process = subprocess.Popen(
        guarded([sys.executable, "-m", "flows.pipeline", *targets]),
        cwd=root,
        env=environment | {"AFM_ROOT": str(root)},
        start_new_session=True,
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def _result_lines(rows: Sequence[ResultRow]) -> list[str]:
    head = f"  {'cell':<14} {'variant':<8} {'avg@k':>6}  {'95% interval':<16} {'greedy':>6}  {'shuffled':>8}"
    return [
        "Held-out queries",
        head,
        *(
            f"  {row.cell:<14} {row.variant:<8} {_cell(row.avg_at_k):>6}  "
            f"[{_cell(row.low)}, {_cell(row.high)}]   {_cell(row.greedy):>6}  {_cell(row.shuffled):>8}"
            for row in rows
        ),
    ]


def _time_lines(root: Path) -> list[str]:
    from flows.dag import read_lock
    from flows.records import read_records

    records = {record.cell: record for record in read_records(root)}
    cells = [records[cell] for cell in read_lock(root) if cell in records]
    total = sum(record.wall_s for record in cells)
    lines = [f"  {record.cell:<26} {record.wall_s:7.1f} s" for record in cells]
    return ["Time per stage", *lines, f"  {'total':<26} {total:7.1f} s"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
