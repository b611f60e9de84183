"""Stages as Jobs: the real submit, store and DVC over the executor, against a cluster double that runs pods."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.executors.cluster.access import ACCESS
from tests.support.cluster import Cluster
from tests.support.cluster_toy import PROFILE, ClusterToy, config
from tests.support.toy import ALPHA_WORDS

pytestmark = pytest.mark.e2e

ROWS = "data/alpha/mhqa/rows.txt"


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ClusterToy]:
    with Cluster(tmp_path / "cluster", config()) as cluster:
        made = ClusterToy(tmp_path / "shared", cluster, num_rows=4)
        made.git_and_dvc()
        yield made
        assert made.marked() == []


def wait_for(what: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


def created(toy: ClusterToy) -> list[str]:
    return [job["metadata"]["uid"] for job in toy.jobs() if job["change"] == "ADDED"]


def test_repro_runs_stages_as_jobs_and_then_nothing(toy: ClusterToy) -> None:
    toy.cluster.reset_requests()
    code, output = toy.run(*toy.dvc("repro"))
    assert code == 0, output
    granted = {f"{verb} {one.resource}" for one in ACCESS for verb in one.verbs}
    assert {"create jobs", "list pods", "get pods/log"} <= set(toy.cluster.requests()) <= granted
    assert (toy.root / ROWS).read_text().count("hello") == 4
    assert "row 3" in output
    assert len(created(toy)) == 2
    assert toy.cluster.read_only_violations() == []
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
    assert rows(log) == [f"row {n}" for n in range(4)]


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


def submit(toy: ClusterToy, timeout_s: float = 60.0) -> tuple[int, str]:
    process = toy.submit()
    output, _ = process.communicate(timeout=timeout_s)
    return process.returncode, output


def gone(toy: ClusterToy) -> bool:
    return toy.jobs()[-1]["change"] == "DELETED"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"images": dict.fromkeys(("pipeline", "serve", "rl"), "missing:1")}, "image: "),
        ({"defaults": PROFILE | {"cpu": "1000"}}, "unschedulable: 0/2 nodes are available"),
        ({"secrets": {"KEY": {"name": "none", "key": "k"}}}, 'secret "none" not found'),
        ({"mounts": [{"claim": "none", "path": "/models"}]}, 'persistentvolumeclaim "none"'),
    ],
)
def test_what_cannot_start_ends_with_the_clusters_reason(
    toy: ClusterToy, settings: dict[str, Any], words: str
) -> None:
    toy.configure(**settings, pending_deadline_s=3)
    code, output = submit(toy)
    assert code == 1, output
    assert words in output.splitlines()[-1], output
    assert gone(toy)


def test_a_denied_quota_is_told_and_a_freed_one_lets_the_job_run(toy: ClusterToy) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.cpu": "0"}}}
    toy.cluster.post("/api/v1/namespaces/afm/resourcequotas", quota)
    toy.configure(pending_deadline_s=3)
    code, output = submit(toy)
    assert code == 1
    assert "quota: " in output.splitlines()[-1]
    assert "exceeded quota: small" in output
    toy.cluster.delete("/api/v1/namespaces/afm/resourcequotas/small")
    toy.configure(pending_deadline_s=120)
    assert submit(toy)[0] == 0


def test_bad_input_fails_at_once_and_is_no_crash(toy: ClusterToy) -> None:
    (toy.root / "source.txt").write_text("bad")
    toy.commit()
    code, output = submit(toy)
    assert code == 2, output
    assert "must not start with 'bad'" in output
    assert len(toy.pods()) == 1


def test_a_tree_that_is_no_commits_is_refused_before_anything_starts(toy: ClusterToy) -> None:
    toy.set_rows(5)
    code, output = submit(toy)
    assert code == 2, output
    assert "params.yaml; commit" in output
    assert created(toy) == []


def test_a_stage_over_its_memory_is_told_apart(toy: ClusterToy) -> None:
    toy.configure(pace=0, defaults=PROFILE | {"memory": "300Mi"}, hog=700)
    code, output = submit(toy)
    assert code == 137, output
    assert "oom: " in output
    assert len(toy.pods()) == 1, "the same memory would not do the second time"


def test_a_deadline_ends_the_job_and_keeps_its_output(toy: ClusterToy) -> None:
    toy.configure(pace=1.0, defaults=PROFILE | {"deadline_s": 3})
    code, output = submit(toy)
    assert code == 1, output
    assert "deadline: " in output
    assert "row 0" in output


@pytest.mark.parametrize("how", ["evict", pytest.param("preempt", marks=pytest.mark.soak)])
def test_a_disruption_does_not_count_and_the_stage_goes_on(toy: ClusterToy, how: str) -> None:
    toy.configure(pace=0.7, backoff_limit=0)
    process = toy.submit()
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    getattr(toy.cluster, how)("afm", toy.pods()[0])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert len(toy.pods()) == 2
    assert output.count("continuing from") == 2
    assert "row 3" in output


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda cluster: cluster.outage(6), id="outage"),
        pytest.param(lambda cluster: cluster.freeze(6), id="frozen", marks=pytest.mark.soak),
        pytest.param(lambda cluster: cluster.expire_watches(), id="410"),
        pytest.param(lambda cluster: cluster.stale_watches(30), id="stale", marks=pytest.mark.soak),
        pytest.param(lambda cluster: cluster.break_logs(), id="broken log"),
    ],
)
def test_a_fault_of_the_api_loses_nothing(
    toy: ClusterToy, fault: Callable[[Cluster], object]
) -> None:
    toy.configure(pace=1.0)
    process = toy.submit()
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    fault(toy.cluster)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert rows(output) == [f"row {n}" for n in range(4)]
    assert len(created(toy)) == 1


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("row ")]


def test_a_rotated_token_is_read_again(toy: ClusterToy) -> None:
    toy.configure(pace=1.0)
    process = toy.submit()
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    toy.cluster.rotate("launcher", "another-token", toy.shared.parent / "token")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert rows(output) == [f"row {n}" for n in range(4)]


def test_a_result_whose_job_has_passed_away_is_still_collected(toy: ClusterToy) -> None:
    toy.configure(pace=0.5, ttl_s=1)
    process = toy.submit()
    wait_for(lambda: toy.trace.exists())
    process.kill()
    process.wait()
    wait_for(lambda: gone(toy))
    code, output = submit(toy)
    assert code == 0, output
    assert toy.writers() == ["begin", "end"]


def test_two_submits_share_one_job(toy: ClusterToy) -> None:
    toy.configure(pace=0.5)
    first, second = toy.submit(), toy.submit()
    for process in (first, second):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    assert len(created(toy)) == 1


def test_a_changed_param_is_another_job(toy: ClusterToy) -> None:
    toy.set_rows(60)
    toy.commit()
    toy.configure(pace=1.0)
    process = toy.submit()
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    process.kill()
    process.wait()
    toy.set_rows(2)
    toy.commit()
    code, output = submit(toy)
    assert code == 0, output
    assert "continuing from 0" in output
    assert len((toy.root / ROWS).read_text().splitlines()) == 2
    assert "is still active with other inputs" in output
    code, output = toy.run(str(toy.python), "-m", "flows.cli", "cancel", "alpha")
    assert code == 0, output
    assert toy.cluster.processes() == []


def test_a_job_in_a_queue_has_no_pending_deadline(toy: ClusterToy) -> None:
    toy.configure(queue="gpus", pending_deadline_s=60)
    process = toy.submit()
    wait_for(lambda: created(toy))
    name = toy.jobs()[-1]["metadata"]["name"]
    toy.cluster.age("jobs", name, 3600)
    wait_for_looks(toy)
    toy.cluster.stop_controllers(4)
    # Now the Job may run, and its `startTime` is not written yet.
    toy.cluster.patch(f"/apis/batch/v1/namespaces/afm/jobs/{name}", {"spec": {"suspend": False}})
    wait_for_looks(toy)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def wait_for_looks(toy: ClusterToy) -> None:
    """Wait until the submit has asked for its Job twice: once may have been before what the caller did."""
    before = toy.cluster.requests().get("get jobs", 0)
    wait_for(lambda: toy.cluster.requests().get("get jobs", 0) >= before + 2)


def test_settings_that_are_wrong_are_named(toy: ClusterToy) -> None:
    toy.configure(poll_s="often")
    code, output = submit(toy)
    assert code == 2
    assert "poll_s" in output
    assert "Traceback" not in output


def test_a_checkout_outside_the_shared_filesystem_is_refused(toy: ClusterToy) -> None:
    toy.configure(shared_path="/elsewhere")
    code, output = submit(toy)
    assert code == 2
    assert "/elsewhere" in output
    assert created(toy) == []


def test_missing_rights_are_said(toy: ClusterToy) -> None:
    toy.extra["KUBECONFIG"] = str(toy.root / "none")
    code, output = submit(toy)
    assert code == 2
    assert "KUBECONFIG" in output
