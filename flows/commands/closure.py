"""`afm closure`: keep the code dependencies in dvc.yaml equal to what each stage imports."""

import argparse

from flows.workspace import here
from stages._closure import stale_blocks, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm closure`."""
    parser.add_argument("--write", action="store_true", help="rewrite dvc.yaml")


def run(args: argparse.Namespace) -> int:
    """Print or mend the blocks of dvc.yaml whose code dependencies are wrong.

    Exit codes: 0 up to date now; 1 stale.
    """
    root = here().root
    names = write(root) if args.write else list(stale_blocks(root))
    for name in names:
        print(f"{'rewrote' if args.write else 'stale'}: {name}")
    return 0 if args.write or not names else 1
