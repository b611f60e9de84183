"""`afm cancel`: end active jobs on purpose. Their checkpoints stay, and the same command continues from them."""

import argparse

from flows.executors import make_executor
from flows.jobs import UNKNOWN, as_job, matching
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm cancel`."""
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", help="identity, cell (sft@mhqa-tiny) or stage"
    )


def run(args: argparse.Namespace) -> int:
    """End the named jobs that are active.

    Exit codes: 0 ended; 1 none of them was active.
    """
    workspace = here()
    active = [job for job in matching(workspace, args.jobs) if job.state in ("running", UNKNOWN)]
    for job in active:
        make_executor({"AFM_EXECUTOR": job.executor}).cancel(as_job(workspace, job))
        print(f"ended {job.cell} {job.identity}")
    if not active:
        print("none of them is active")
    return 0 if active else 1
