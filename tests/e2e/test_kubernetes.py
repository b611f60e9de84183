"""Stages as Jobs: the real submit, store and DVC over the executor, against a cluster double that runs pods."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_toy import ClusterToy, config
from tests.support.toy import ALPHA_WORDS

pytestmark = pytest.mark.e2e

ROWS = "data/alpha/mhqa/rows.txt"


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ClusterToy]:
    with Cluster(tmp_path / "cluster", config()) as cluster:
        made = ClusterToy(tmp_path / "shared", cluster, num_rows=4)
        made.git_and_dvc()
        yield made
        assert cluster.read_only_violations() == []
        assert made.marked() == []


def wait_for(what: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


def created(toy: ClusterToy) -> list[str]:
    return [job["metadata"]["uid"] for job in toy.jobs() if job["change"] == "ADDED"]


def test_repro_runs_stages_as_jobs_and_then_nothing(toy: ClusterToy) -> None:
    code, output = toy.run(*toy.dvc("repro"))
    assert code == 0, output
    assert (toy.root / ROWS).read_text().count("hello") == 4
    assert "row 3" in output
    assert len(created(toy)) == 2
    log = next((toy.root / ".scratch").glob("*/log")).read_text()
    assert log.count("row 0") <= 1
    code, output = toy.run(*toy.dvc("repro"))
    assert "up to date" in output
    assert len(created(toy)) == 2


def test_a_killed_submit_leaves_the_job_and_the_next_adopts_it(toy: ClusterToy) -> None:
    toy.configure(pace=0.5)
    process = toy.submit()
    wait_for(lambda: toy.trace.exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    code, output = toy.submit().wait(60), ""
    assert code == 0, output
    assert toy.writers() == ["begin", "end"]
    assert len(created(toy)) == 1
    log = next((toy.root / ".scratch").glob("*/log")).read_text()
    assert [line for line in log.splitlines() if line.startswith("row")] == [
        f"row {n}" for n in range(4)
    ]


def test_ctrl_c_ends_the_job_and_the_next_goes_on_from_its_checkpoint(toy: ClusterToy) -> None:
    toy.configure(pace=0.5)
    process = toy.submit()
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert toy.cluster.processes() == []
    toy.configure(pace=0)
    code, output = toy.run("bin/submit", *ALPHA_WORDS)
    assert code == 0, output
    assert "continuing from" in output
    assert "continuing from 0" not in output
