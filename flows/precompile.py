"""`python -m flows.precompile`: bytecode of the checkout's code, and what its files mention, ahead of the first run.

Installing an environment compiles what it installs, but the project stays where it is. Without this the first submit
of each stage compiles and parses it, which costs more than all else that submit does.
"""

import compileall
import sys
from pathlib import Path

from afm.errors import UserError
from flows.identity import known_mentions, stage_names
from flows.workspace import home_of
from stages._closure import code_hashes

PACKAGES = ("afm", "flows", "stages")


def precompile(root: Path) -> None:
    """Compile and parse what is new. It only saves time, so code that is broken is told and left to whoever runs it."""
    for package in PACKAGES:
        compileall.compile_dir(root / package, quiet=2)
    mentions = known_mentions(home_of(root))
    for stage in stage_names(root):
        try:
            code_hashes(root, f"stages.{stage}", mentions)
        except UserError as error:
            print(f"precompile: {error}", file=sys.stderr)
    mentions.save()


if __name__ == "__main__":
    precompile(Path.cwd())
