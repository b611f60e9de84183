"""`afm run` and `afm demo`: the flow on a laptop, with a Prefect server of its own where none is configured."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from afm.errors import UserError
from afm.params.root import read_params
from flows.audit_page.place import PAGE
from flows.guard import guarded
from flows.planning import as_json, as_text, prepare_work
from flows.results import ResultRow, read_differences, read_results
from flows.selection import Selection, add_run_arguments
from flows.servers import PrefectServer, prefect_server
from flows.workspace import home_of

__all__ = ["add_run_arguments", "demo_command", "run_command", "summary"]

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 1.0
"""How often it is looked whether the Prefect server still runs [s]."""


def run_command(args: argparse.Namespace) -> int:
    """Run the flow once, through Prefect; with --dry-run only say what it would do.

    Exit codes: 0 done; 1 a stage failed; 2 bad input; 130 interrupted or cancelled.

    Raises:
        UserError: params.yaml is wrong anywhere: better now than hours later in another stage; or the Prefect server
            did not start, or has ended.
    """
    read_params(ROOT / "params.yaml")
    if args.executor is not None:
        os.environ["AFM_EXECUTOR"] = args.executor
    selection = Selection.from_arguments(args)
    if args.dry_run:
        work = prepare_work(ROOT, selection)
        print(as_json(work) if args.json else as_text(work))
        return 0
    with _prefect(ROOT) as server:
        return _run_flow(ROOT, selection, server)


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
        *([f"audit:  {os.path.relpath(root / PAGE)}"] if (root / PAGE).exists() else []),
        "Prefect: afm ui prefect",
        "MLflow:  afm ui mlflow",
    ]
    return "\n".join(lines)


@contextmanager
def _prefect(root: Path) -> Iterator[PrefectServer | None]:
    """Run a Prefect server of our own, unless one is configured."""
    if "PREFECT_API_URL" in os.environ:
        yield None
        return
    print("starting a Prefect server ...", file=sys.stderr, flush=True)
    with prefect_server(root) as server:
        yield server


def _run_flow(root: Path, selection: Selection, server: PrefectServer | None) -> int:
    """Run the flow in a process that ends when this one does; Ctrl-C ends its job, another end of us does not.

    Raises:
        UserError: the server that the flow reports to is gone.
    """
    environment = server.environment if server else dict(os.environ)
    process = subprocess.Popen(
        guarded([sys.executable, "-m", "flows.pipeline", selection.model_dump_json()]),
        cwd=root,
        env=environment | {"AFM_ROOT": str(root)},
        start_new_session=True,
    )
    while process.poll() is None:
        try:
            if server is not None and server.process.poll() is not None:
                process.terminate()
                process.wait()
                raise UserError(
                    f"the Prefect server has ended (log: {server.log}); a stage that was at work goes on, and the "
                    "same command adopts it"
                )
            process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    return process.returncode


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
    from flows.lock_file import read_lock
    from flows.records import read_records

    records = {record.cell: record for record in read_records(home_of(root))}
    cells = [records[cell] for cell in read_lock(root) if cell in records]
    total = sum(record.wall_s for record in cells)
    lines = [f"  {record.cell:<26} {record.wall_s:7.1f} s" for record in cells]
    return ["Time per stage", *lines, f"  {'total':<26} {total:7.1f} s"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
