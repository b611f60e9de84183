"""The one run of the whole pipeline that the end-to-end tests look at."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from flows.copies import SMOKE, make_copy
from flows.environment import variable
from tests.support.cluster import ClusterProcess, Handle
from tests.support.cluster_toy import admit, config, settings

REPO = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 2400.0


def command(
    copy: Path, *words: str, timeout: float = 600.0, variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a module in the copy, as a user in that folder would."""
    environment = {name: value for name, value in os.environ.items() if name != "AFM_HOME"}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=copy,
        env={**environment, "PYTHONPATH": str(copy), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """A cluster double whose pods run on this machine."""
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterProcess(folder, config(time_scale=1.0)) as running:
        yield running


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory, cluster: Handle) -> Path:
    """A checkout in which the whole pipeline has run once at scale `smoke`, through Prefect, each stage as a Job.

    AFM_EXECUTOR=local runs it as processes of this machine instead: `make soak` does so in a test of its own.
    """
    missing = [name for name in (".venv-rl", ".venv-serve") if not (REPO / name).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: run `make envs`")
    shared = tmp_path_factory.mktemp("pipeline") / "shared"
    copy = shared / "smoke"
    make_copy(REPO, copy, SMOKE)
    run_demo(copy, on_cluster(cluster, shared))
    return copy


def run_demo(copy: Path, variables: Mapping[str, str]) -> None:
    """Run the whole pipeline in a copy and keep what it printed."""
    began = time.monotonic()
    done = command(copy, "flows.cli", "demo", timeout=RUN_TIMEOUT_S, variables=variables)
    print(f"the smoke run took {time.monotonic() - began:.0f} s")
    (copy / "demo.txt").write_text(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"


def on_cluster(cluster: Handle, shared: Path) -> dict[str, str]:
    """Return the variables with which a checkout below `shared` runs its stages as Jobs."""
    chosen = settings(shared)
    chosen["defaults"] |= {"memory": "16Gi", "deadline_s": 2000, "grace_s": 20}
    chosen["environment"] = {
        variable(name): str(REPO / folder / "bin" / "python")
        for name, folder in (("serve", ".venv-serve"), ("rl", ".venv-rl"), ("math", ".venv-math"))
    }
    path = shared.parent / "cluster.yaml"
    path.write_text(json.dumps(chosen))
    kubeconfig = admit(cluster, shared)
    return {
        "AFM_EXECUTOR": "kubernetes",
        "AFM_CLUSTER": str(path),
        "KUBECONFIG": str(kubeconfig),
    }
