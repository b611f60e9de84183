"""`afm doctor`: what is amiss with environments, checkout, storage, services and cluster, and what to do about it."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from flows.doctor import examine
from flows.doctor.finding import Finding, Site, State
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm doctor`."""
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="look at the cluster too; as it is where AFM_EXECUTOR=kubernetes",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(args: argparse.Namespace) -> int:
    """Print a line for each check.

    Exit codes: 0 no problem; 1 at least one.
    """
    workspace = here()
    is_cluster = args.cluster or os.environ.get("AFM_EXECUTOR") == "kubernetes"
    site = Site(root=workspace.root, home=workspace.home, environ=os.environ, is_cluster=is_cluster)
    findings = []
    for one in examine(site):
        findings.append(one)
        if not args.json:
            print(line(one), flush=True)
    healthy = all(one.state is not State.PROBLEM for one in findings)
    if args.json:
        json.dump(as_json(findings, healthy=healthy), sys.stdout, indent=2)
        print()
    return 0 if healthy else 1


def line(one: Finding) -> str:
    """Lay a finding out for a terminal."""
    todo = f"\n{'':34}-> {one.todo}" if one.todo else ""
    return f"{one.state:<18}  {one.topic:<12}  {one.text}{todo}"


def as_json(findings: Sequence[Finding], *, healthy: bool) -> dict[str, object]:
    """Return the findings for machines."""
    return {"healthy": healthy, "findings": [dataclasses.asdict(one) for one in findings]}
