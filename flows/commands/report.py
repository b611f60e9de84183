"""`afm report`: one self-contained page on all that led to the models of this checkout."""

import argparse
import os
from pathlib import Path

from flows.audit_page.place import PAGE
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"where to write it (default: {PAGE})"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and say where it is and what it lacks.

    Raises:
        UserError: nothing has run here.
    """
    from flows.audit_page.page import write_page

    workspace = here()
    path = args.out or workspace.root / PAGE
    page = write_page(workspace, path)
    print(
        f"{os.path.relpath(path)}: {len(page.chain.runs)} runs, {len(page.measured)} sections of stage report"
    )
    for line in page.missing:
        print(f"missing: {line}")
    return 0
