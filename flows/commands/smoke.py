"""`afm smoke`: the whole pipeline at scale `smoke`, in a checkout of its own under build/."""

import argparse
import os
import subprocess
import sys

from flows.copies import SMOKE, make_copy
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm smoke`."""
    parser.add_argument("targets", nargs="*", help="cells or stages; default: the whole pipeline")


def run(args: argparse.Namespace) -> int:
    """Run the flow there and return its exit code."""
    root = here().root
    copy = root / "build" / "smoke"
    make_copy(root, copy, SMOKE)
    environment = {name: value for name, value in os.environ.items() if name != "AFM_HOME"}
    command = [sys.executable, "-m", "flows.cli", "demo", *args.targets]
    return subprocess.run(
        command, cwd=copy, env={**environment, "PYTHONPATH": str(copy)}
    ).returncode
