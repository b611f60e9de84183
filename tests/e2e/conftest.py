"""The one run of the whole pipeline that the end-to-end tests look at."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.copies import SMOKE, make_copy

REPO = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 2400.0


def command(copy: Path, *words: str, timeout: float = 600.0) -> "subprocess.CompletedProcess[str]":
    """Run a module in the copy, as a user in that folder would."""
    environment = {name: value for name, value in os.environ.items() if name != "AFM_HOME"}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=copy,
        env=environment | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout in which the whole pipeline has run once at scale `smoke`, through Prefect."""
    missing = [name for name in (".venv-rl", ".venv-serve") if not (REPO / name).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: run `make envs`")
    copy = tmp_path_factory.mktemp("pipeline") / "smoke"
    make_copy(REPO, copy, SMOKE)
    began = time.monotonic()
    done = command(copy, "flows.cli", "demo", timeout=RUN_TIMEOUT_S)
    print(f"the smoke run took {time.monotonic() - began:.0f} s")
    (copy / "demo.txt").write_text(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    yield copy
