"""Deployments on a real Prefect server and worker: parameters, parallel cells, failures, approval, cancelling."""

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from tests.support.prefect_world import PrefectWorld, prefect_world
from tests.support.processes import assert_nothing_is_left, playing, wait_until
from tests.support.toy import REPO

pytestmark = pytest.mark.e2e

NAMES = ("pipeline", "distill", "reinforce", "evaluate")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectWorld]:
    with prefect_world(tmp_path_factory.mktemp("prefect")) as made:
        yield made


def test_plain_prefect_deploys_everything_without_a_prompt(world: PrefectWorld) -> None:
    done = subprocess.run(
        [str(world.toy.python), "-m", "prefect", "deploy", "--all"],
        cwd=world.toy.root,
        env=world.toy.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one for one in world.ask("/deployments/filter", {})}
    assert set(found) == {*NAMES, *(f"{name}-kubernetes" for name in NAMES)}
    for name in NAMES:
        assert found[name]["work_pool_name"] == "laptop"
        assert found[f"{name}-kubernetes"]["work_pool_name"] == "kubernetes"
        assert found[f"{name}-kubernetes"]["parameters"] == {"executor": "kubernetes"}
        assert "afm" in found[name]["tags"]
        assert found[name]["description"]
    assert [one["active"] for one in found["pipeline"]["schedules"]] == [False]
    assert world.ask("/concurrency_limits/tag/local")["concurrency_limit"] == 2
    assert world.ask("/concurrency_limits/tag/gpu")["concurrency_limit"] == 8


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"agents": ["chemistry"]}, "chemistry"),
        ({"agents": []}, "agents"),
        ({"scales": ["tiny", "tiny"]}, "scales"),
        ({"stages": ["dapo"]}, "dapo"),
        ({"executor": "slurm"}, "slurm"),
        ({"force": "perhaps"}, "perhaps"),
    ],
)
def test_the_api_refuses_wrong_parameters(
    world: PrefectWorld, parameters: dict[str, object], named: str
) -> None:
    code, said = world.refusal("distill/distill", **parameters)
    assert code in (409, 422), said
    assert named in said


def test_a_run_from_the_api_completes_with_cells_side_by_side(world: PrefectWorld) -> None:
    for agent in ("mhqa", "web"):
        world.toy.source(agent, "slow 4")
    run = world.start("distill/distill", stages=["prepare"])
    state = world.finish(run)
    assert state["type"] == "COMPLETED", state
    tasks = world.tasks(run)
    assert set(tasks) == {"prepare@mhqa", "prepare@web"}
    begins, ends = (
        [datetime.fromisoformat(task[key]) for task in tasks.values()]
        for key in ("start_time", "end_time")
    )
    assert (min(ends) - max(begins)).total_seconds() > 3, "they ran at the same time"
    artifacts = world.artifacts(run)
    assert {"plan", "cells", "funnel", "lineage"} <= artifacts.keys()
    assert "source-mhqa.txt" in artifacts["plan"] or "has not run yet" in artifacts["plan"]
    assert_nothing_of_the_run_is_left(world)


def assert_nothing_of_the_run_is_left(world: PrefectWorld) -> None:
    assert_nothing_is_left(world.toy.root, timeout_s=30)


def test_a_failed_cell_stops_what_reads_from_it_and_nothing_else(world: PrefectWorld) -> None:
    world.toy.source("web", "bad")
    world.toy.source("mhqa", "hello")
    run = world.start("pipeline/pipeline")
    state = world.finish(run)
    assert state["type"] == "FAILED", state
    assert "prepare@web failed: prepare: source: must not be 'bad'" in state["message"]
    assert "not begun: sft@web-tiny (because of prepare@web)" in state["message"]
    types = {name: task["state"]["type"] for name, task in world.tasks(run).items()}
    assert types == {
        "prepare@mhqa": "COMPLETED",
        "sft@mhqa-tiny": "COMPLETED",
        "prepare@web": "FAILED",
    }
    artifacts = world.artifacts(run)
    assert "must not be" in artifacts["failure"]
    assert "sft@web-tiny" in artifacts["cells"]


def test_a_costly_stage_waits_for_a_yes(world: PrefectWorld) -> None:
    world.toy.source("web", "hello")
    world.toy.params("run.approve_above_gpu_hours=10")
    run = world.start("distill/distill", agents=["web"])
    state = world.wait(run, "PAUSED", "COMPLETED", "FAILED")
    assert state["type"] == "PAUSED", state
    assert "sft@web-tiny may take 72.0 GPU-hours (1 GPUs x 72.0 h, its deadline" in state["message"]
    assert set(world.tasks(run)) == {"prepare@web"}
    assert world.ask(f"/flow_runs/{run}/resume", {})["status"] == "ACCEPT"
    assert world.finish(run)["type"] == "COMPLETED"
    assert set(world.tasks(run)) == {"prepare@web", "sft@web-tiny"}
    world.toy.params("run.approve_above_gpu_hours=null")


def test_a_gpu_stage_does_not_run_again_for_code_alone(world: PrefectWorld) -> None:
    path = world.toy.root / "stages" / "sft.py"
    path.write_text(path.read_text().replace('text + "', '"" + text + "'))
    run = world.start("distill/distill", agents=["web"])
    state = world.finish(run)
    assert (state["type"], state["name"]) == ("FAILED", "BadInput"), state
    assert "sft@web-tiny takes" in state["message"]
    assert "nothing but code has changed since its result: stages/sft.py" in state["message"]
    assert "allow_code_rerun" in state["message"]
    allowed = world.start("distill/distill", agents=["web"], allow_code_rerun=True)
    assert world.finish(allowed)["type"] == "COMPLETED"
    assert set(world.tasks(allowed)) == {"sft@web-tiny"}


def test_cancelling_leaves_no_process(world: PrefectWorld) -> None:
    world.toy.source("mhqa", "slow 120")
    run = world.start("distill/distill", agents=["mhqa"])
    wait_until(lambda: playing(world.toy.root, "stage"), 90)
    world.set_state(run, "CANCELLING")
    assert world.wait(run, "CANCELLED", "CRASHED", "FAILED")["type"] == "CANCELLED"
    assert_nothing_of_the_run_is_left(world)
    world.toy.source("mhqa", "hello")


def test_the_server_takes_the_automations(world: PrefectWorld) -> None:
    path = REPO / "docs" / "how-to" / "automations.yaml"
    code, output = world.toy.run(
        *(str(world.toy.python), "-m", "prefect", "automation", "create", "--from-file", str(path))
    )
    assert code == 0, output
    found = world.ask("/automations/filter", {})
    assert {one["name"] for one in found} == {"afm-failed", "afm-stuck"}
    assert all(one["enabled"] for one in found)


def test_doctor_sees_the_deployments_and_that_sqlite_has_one_worker_too_many(
    world: PrefectWorld,
) -> None:
    beat = httpx.post(
        f"{world.api}/work_pools/kubernetes/workers/heartbeat", json={"name": "second"}
    )
    assert beat.is_success, beat.text
    code, output = world.toy.run(str(world.toy.python), "-m", "flows.cli", "doctor", "--json")
    assert code == 1, output
    tree = json.loads(output[output.index("{") :])
    found = {one["text"]: one for one in tree["findings"] if one["topic"] == "services"}
    texts = "\n".join(found)
    assert "Prefect has all 8 deployments of prefect.yaml" in texts
    (one,) = [one for text, one in found.items() if "2 worker(s) online on SQLite" in text]
    assert one["state"] == "problem"
    assert "PostgreSQL" in one["todo"]
