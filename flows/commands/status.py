"""`afm status`: the jobs of this checkout."""

import argparse
import dataclasses
import json
import time

from flows.jobs import JobState, list_jobs
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm status`."""
    parser.add_argument("--json", action="store_true", help="one JSON list, for machines")
    parser.add_argument("--all", action="store_true", help="finished ones too")


def run(args: argparse.Namespace) -> int:
    """Print running and ended jobs; what is stale is `dvc status`'s business."""
    workspace = here()
    jobs = [job for job in list_jobs(workspace) if args.all or job.state != "finished"]
    if args.json:
        rows = [dataclasses.asdict(job) | {"log": str(job.log)} for job in jobs]
        print(json.dumps(rows, indent=2))
        return 0
    for job in jobs:
        print(_line(job))
    if not jobs:
        print("no job is running and none is left unfinished")
    return 0


def _line(job: JobState) -> str:
    minutes = (time.time() - job.started) / 60
    return f"{job.identity}  {job.state:<8}  {job.cell:<26}  began {minutes:.0f} min ago  log {job.log}"
