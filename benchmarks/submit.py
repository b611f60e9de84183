"""What bin/submit costs beside its stage, and what planning costs: one JSON line per figure.

CPU of submit's own process, interpreter and imports included: for each cell of a real run at scale `smoke` on this
machine, which takes five minutes, and for a stage of a toy checkout that does nothing, on this machine and as a Job on
the API double. Planning is the whole `afm run --dry-run` for three agents at three scales.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._figures import Figure, at_most, print_figures
from flows.copies import SMOKE, make_copy
from flows.dag import read_plan
from flows.precompile import precompile
from tests.support.cluster import Cluster
from tests.support.cluster_toy import ClusterToy, config
from tests.support.toy import Toy

NUM_RUNS = 5
TIMED = """\
#!{python}
import json, resource, runpy, sys
sys.argv = sys.argv[2:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    json.dump([one.ru_utime + one.ru_stime for one in used], open({path!r}, "w"))
"""
"""An interpreter that says what `-m MODULE ...` used."""


class Timer:
    """An interpreter that notes what submit used."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.path, self._usage = folder / "timed", folder / "usage.json"
        self.path.write_text(TIMED.format(python=python, path=str(self._usage)))
        self.path.chmod(0o755)

    def read(self) -> tuple[float, float]:
        """Return what the last submit used itself, and what its children used [CPU s]."""
        own, children = json.loads(self._usage.read_text())
        self._usage.unlink()
        return own, children


def submit_cpu(toy: Toy, *, children: bool) -> float:
    """Return the CPU that one submit with a new identity takes [s], the median of some; `children`: with git's."""
    timer = Timer(toy.root.parent, toy.python)
    used = []
    for number in range(NUM_RUNS):
        toy.set_rows(number + 1)
        toy.commit()
        toy.extra["AFM_PYTHON"] = str(timer.path)
        output, _ = toy.submit().communicate(timeout=120)
        assert "starting" in output, output
        own, others = timer.read()
        used.append(own + others if children else own)
    return statistics.median(used)


def submits(folder: Path) -> Iterator[Figure]:
    """Measure both executors."""
    local = Toy(folder / "local" / "toy", num_rows=1)
    local.git_and_dvc()
    yield at_most("submit_cpu_local", submit_cpu(local, children=False), 0.5, "s")
    with Cluster(folder / "cluster", config()) as cluster:
        toy = ClusterToy(folder / "shared", cluster, num_rows=1)
        toy.git_and_dvc()
        yield at_most("submit_cpu_kubernetes", submit_cpu(toy, children=True), 1.5, "s")


def real_stages(root: Path, folder: Path) -> Iterator[Figure]:
    """Run the pipeline at scale `smoke` cell by cell and measure each submit."""
    copy = folder / "smoke"
    make_copy(root, copy, SMOKE)
    precompile(copy)  # as `make envs` does
    timer = Timer(folder, copy / ".venv" / "bin" / "python")
    environment = {**os.environ, "AFM_PYTHON": str(timer.path), "AFM_LINEAGE": "0"}
    for cell in read_plan(copy).cells:
        words = shlex.split(cell.command)
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        yield at_most(f"submit_cpu[{cell.name}]", timer.read()[0], 0.5, "s")


def planning(root: Path, folder: Path) -> Figure:
    """Measure the dry run of a checkout in which nothing has run."""
    copy = folder / "nine"
    names = "run.agents=[mhqa,web,code]"
    scales = {"run.scales": "[tiny,3b,7b]", "screen.base_policy_agents": "[mhqa,web]"}
    make_copy(
        root, copy, dict([names.split("=")]) | scales | {"screen.sft_policy_agents": "[code]"}
    )
    precompile(copy)
    command = [sys.executable, "-m", "flows.cli", "run", "--dry-run", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    began = time.monotonic()
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["cells"]) > 60, done.stdout[:300]
    return at_most("planning_3x3", seconds, 5, "s")


def figures(root: Path) -> Iterator[Figure]:
    """Yield every figure."""
    with tempfile.TemporaryDirectory() as name:
        yield planning(root, Path(name))
        yield from submits(Path(name))
        yield from real_stages(root, Path(name))


if __name__ == "__main__":
    print_figures(figures(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
