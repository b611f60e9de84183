"""Stages of several ranks as Indexed Jobs: all begin or none, and no job of half a gang blocks another for ever."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from afm.training.record import read_steps
from tests.support.cluster import Cluster, Node
from tests.support.cluster_toy import config
from tests.support.rank_toy import RankToy

pytestmark = pytest.mark.e2e


@pytest.fixture
def places(request: pytest.FixtureRequest) -> int:
    return int(getattr(request, "param", 2))


@pytest.fixture
def toy(tmp_path: Path, places: int) -> Iterator[RankToy]:
    nodes = tuple(Node(name=f"node-{n}", gpus=1) for n in range(places))
    with Cluster(tmp_path / "cluster", config(nodes=nodes)) as cluster:
        made = RankToy(tmp_path / "shared", cluster, num_rows=4)
        yield made
        # Below the checkout another job's submit may publish while a pod runs.
        changed = [path for path in cluster.read_only_violations() if "/stages/" in path]
        assert changed == []
        assert made.marked() == []


def wait_for(what: Callable[[], object], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.05)


def submit(toy: RankToy, agent: str = "mhqa") -> tuple[int, str]:
    process = toy.submit(*toy.words(agent))
    output, _ = process.communicate(timeout=180)
    return process.returncode, output


def job(toy: RankToy) -> dict[str, Any]:
    return toy.jobs()[-1]


def test_two_ranks_meet_and_make_one_result(toy: RankToy) -> None:
    code, output = submit(toy)
    assert code == 0, output
    assert toy.rows() == "4 by 2\n"
    assert "rank 0 of 2" in output
    assert "rank 1 of 2" not in output, "the ranks' logs are kept apart"
    (other,) = (toy.root / ".scratch").glob("*/log.1")
    assert "rank 1 of 2" in other.read_text()
    assert sorted(toy.begun()) == ["0", "1"]
    assert toy.exit_code() == 0
    assert (
        len({pod["spec"].get("nodeName") for _, pod in toy.cluster.history("pods")} - {None}) == 2
    )
    ((_, service),) = [row for row in toy.cluster.history("services") if row[0] == "ADDED"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["ownerReferences"][0]["name"] == job(toy)["metadata"]["name"]


def test_bad_input_fails_at_once_whichever_rank_finds_it(toy: RankToy) -> None:
    (toy.root / "source.txt").write_text("bad")
    toy.commit()
    code, output = submit(toy)
    assert code == 2, output
    assert "must not start with 'bad'" in output
    assert len(toy.pods()) == 2


@pytest.mark.soak
@pytest.mark.parametrize("places", [1], indirect=True)
def test_with_room_for_one_rank_the_job_leaves_its_place_and_fails_in_the_end(toy: RankToy) -> None:
    toy.configure(barrier_deadline_s=2, backoff_limit=1)
    code, output = submit(toy)
    assert code == 75, output
    assert "only ranks [0] of 2 came within" in output or "did not answer within" in output
    assert "BackoffLimitExceeded" in output
    assert set(toy.codes().values()) <= {75, 76, 143}
    assert list(toy.codes().values()).count(75) == 3
    assert toy.begun() == []
    assert toy.running() == {}


@pytest.mark.soak
def test_two_jobs_with_one_place_each_do_not_block_each_other(toy: RankToy) -> None:
    toy.configure(barrier_deadline_s=5, backoff_limit=30)
    toy.cluster.taint("node-1", "busy", "NoSchedule")
    processes = {"mhqa": toy.submit(*toy.words("mhqa"))}
    wait_for(lambda: toy.running("gamma-mhqa"))
    # Only the second job may use the second place, so that each has one; then the places are free for all.
    toy.configure(tolerations=[{"key": "busy", "operator": "Exists"}])
    processes["web"] = toy.submit(*toy.words("web"))
    wait_for(lambda: toy.running("gamma-mhqa") and toy.running("gamma-web"))
    toy.cluster.taint("node-1", "busy", "")
    for agent, process in processes.items():
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert toy.rows(agent) == "4 by 2\n"
    assert sorted(toy.begun()) == ["0", "0", "1", "1"], "nobody begins alone"
    assert 75 in toy.codes().values()


def test_a_rank_killed_in_the_middle_ends_the_job_with_its_reason(toy: RankToy) -> None:
    toy.configure(pace=2.0)
    process = toy.submit(*toy.words())
    wait_for(lambda: len(toy.begun()) == 2)
    (worker,) = [pod for pod in toy.running() if "-1-" in pod]
    toy.cluster.kill_pod("afm", worker)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 137, output
    assert f"{worker} failed with exit code 137" in output
    assert toy.running() == {}


@pytest.mark.soak
def test_a_rank_whose_process_is_killed_ends_the_others(toy: RankToy) -> None:
    toy.configure(pace=2.0)
    process = toy.submit(*toy.words())
    wait_for(lambda: len(toy.begun()) == 2)
    (pid,) = [int(line.split()[2]) for line in toy.trace.read_text().splitlines() if line[6] == "1"]
    os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1, output
    assert "rank 1 ends with code 1" in output
    assert toy.running() == {}


@pytest.mark.soak
def test_an_evicted_rank_counts_for_nobody_and_all_go_on(toy: RankToy) -> None:
    toy.configure(pace=1.0, backoff_limit=0)
    process = toy.submit(*toy.words())
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    (worker,) = [pod for pod in toy.running() if "-1-" in pod]
    toy.cluster.evict("afm", worker)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "rank 0 of 2, continuing from 0" in output
    assert output.count("rank 0 of 2") == 2
    # The head of the first attempt ended because of the evicted rank, and no failure was allowed.
    assert 76 in toy.codes().values()
    assert toy.rows() == "4 by 2\n"


@pytest.mark.soak
def test_ctrl_c_ends_every_rank_and_the_next_run_goes_on(toy: RankToy) -> None:
    toy.configure(pace=1.0)
    process = toy.submit(*toy.words())
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert toy.cluster.processes() == []
    toy.configure(pace=0)
    code, output = submit(toy)
    assert code == 0, output
    assert "rank 0 of 2, continuing from" in output
    assert "continuing from 0" not in output


@pytest.mark.soak
def test_sft_over_two_ranks_makes_the_steps_of_one_process(toy: RankToy) -> None:
    words = toy.with_sft()
    process = toy.submit(*words)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "sft steps" in output
    shared = read_steps(toy.root / "steps.jsonl")
    toy.extra = {"AFM_EXECUTOR": "local", "AFM_HOME": str(toy.root / "other")}
    (toy.root / "other").mkdir()
    (toy.root / "other" / ".venv").symlink_to(toy.root / ".venv")
    code, output = toy.run("bin/submit", *words)
    assert code == 0, output
    alone = read_steps(toy.root / "steps.jsonl")
    assert len(shared) == len(alone) > 0
    for one, two in zip(shared, alone, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
