"""Whatever of a flow run is killed, at whatever moment: the same command again gives what an undisturbed run gives."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.flow_runs import assert_tidy, finish, outs, shared_server
from tests.support.processes import (
    assert_nothing_is_left,
    assert_only_the_job_is_left,
    end_everything,
    kill_all,
    playing,
    wait_until,
)
from tests.support.toy import Toy

pytestmark = pytest.mark.e2e

PACE = 0.2
ROWS = 60
"""So many that a stage outlives the start of the next run."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with shared_server(tmp_path_factory.mktemp("prefect")) as variables:
        yield variables


@pytest.fixture
def toy(tmp_path: Path, server: dict[str, str]) -> Iterator[Toy]:
    made = Toy(tmp_path / "toy", num_rows=ROWS)
    made.git_and_dvc()
    made.extra = server
    yield made
    end_everything(made.root)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    toy = Toy(tmp_path_factory.mktemp("undisturbed") / "toy", num_rows=ROWS)
    toy.git_and_dvc()
    assert toy.run(*toy.dvc("repro"))[0] == 0
    return outs(toy.root)


def started(toy: Toy) -> "subprocess.Popen[str]":
    """Start a flow run and wait until its first stage has done something."""
    process = toy.afm("run", pace=PACE)
    wait_until(lambda: list(toy.root.glob(".scratch/*/checkpoint")))
    return process


def assert_ended_and_went_on(toy: Toy, expected: dict[str, str]) -> None:
    """Nothing is left; the same command continues from the checkpoint."""
    assert_nothing_is_left(toy.root)
    output = finish(toy.afm("run"))
    assert "continuing from" in output
    assert "continuing from 0" not in output
    assert outs(toy.root) == expected
    assert_tidy(toy.root)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("afm", signal.SIGTERM),
        pytest.param("afm", signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param("flow", signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param("flow", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("guard", signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_a_killed_run_leaves_its_job_alone_and_the_next_adopts_it(
    toy: Toy, undisturbed: dict[str, str], part: str, number: signal.Signals
) -> None:
    process = started(toy)
    kill_all(playing(toy.root, part), number)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert_only_the_job_is_left(toy.root)
    output = finish(toy.afm("run", pace=PACE))
    assert "adopting the active job" in output, output
    assert toy.writers() == ["begin", "end"], "one writer, which has noticed nothing"
    assert not ask(f"{toy.extra['PREFECT_API_URL']}/flow_runs/filter", RUNNING)
    assert outs(toy.root) == undisturbed
    assert_tidy(toy.root)


def test_ctrl_c_ends_the_job_too(toy: Toy, undisturbed: dict[str, str]) -> None:
    process = started(toy)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert_ended_and_went_on(toy, undisturbed)


def test_a_run_that_is_cancelled_in_prefect_ends_its_job(
    toy: Toy, undisturbed: dict[str, str]
) -> None:
    process = started(toy)
    cancel_in_prefect(toy.extra["PREFECT_API_URL"])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "the flow run was cancelled" in output
    assert "Traceback" not in output
    assert_ended_and_went_on(toy, undisturbed)


def cancel_in_prefect(address: str) -> None:
    """Do what the button in the Prefect page does, to the run that began last."""
    newest = ask(f"{address}/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    state = {"type": "CANCELLING", "name": "Cancelling"}
    ask(f"{address}/flow_runs/{newest['id']}/set_state", {"state": state})


RUNNING = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}


def ask(address: str, body: object) -> Any:
    """Post to a JSON API."""
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.soak
def test_a_cancelled_job_ends_the_run_and_the_next_goes_on(
    toy: Toy, undisturbed: dict[str, str]
) -> None:
    process = started(toy)
    cancel = toy.afm("cancel", "alpha")
    assert "ended alpha@mhqa" in finish(cancel)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "alpha@mhqa failed" in output.splitlines()[-1]
    assert "cancelled" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert_ended_and_went_on(toy, undisturbed)


def test_a_param_that_changes_meanwhile_starts_anew(toy: Toy) -> None:
    process = started(toy)
    kill_all(playing(toy.root, "flow"))
    process.communicate(timeout=120)
    toy.set_rows(5)
    output = finish(toy.afm("run"))
    assert "adopting" not in output
    assert "continuing from 0" in output
    assert len((toy.root / "data/alpha/mhqa/rows.txt").read_text().splitlines()) == 5
    assert "still active with other inputs" in output
    finish(toy.afm("cancel", "alpha"))
    assert_nothing_is_left(toy.root)
