"""Whatever of a flow run is killed, at whatever moment: the same command again gives what an undisturbed run gives."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.copies import SMOKE, make_copy
from flows.dag import read_lock
from flows.hashing import Hasher
from flows.servers import prefect_server
from tests.support.processes import (
    assert_nothing_is_left,
    assert_only_the_job_is_left,
    end_everything,
    kill_all,
    playing,
    wait_until,
)
from tests.support.toy import REPO, Toy

pytestmark = pytest.mark.e2e

PACE = 0.2
ROWS = 60
"""So many that a stage outlives the start of the next run."""
REAL = SMOKE | {"prepare.counts.mhqa": "{sft: 60, rl: 20, eval: 20}", "select.num_queries": "8"}
TARGET = "sft@mhqa-smoke"
NUM_CELLS = 14


def outs(root: Path) -> dict[str, str]:
    """Return the outs in dvc.lock, having checked that the workspace holds exactly them."""
    recorded = {out["path"]: out["md5"] for one in read_lock(root).values() for out in one["outs"]}
    hasher = Hasher(root / "memory")
    assert {path: hasher.md5(root / path) for path in recorded} == recorded
    return recorded


def assert_tidy(root: Path) -> None:
    """Nothing half-written, no process, no lock that anybody holds."""
    assert_nothing_is_left(root)
    assert list((root / "data").rglob(".*.new")) == []
    assert list((root / ".results").glob("*.partial")) == []
    assert (root / ".dvc" / "tmp" / "rwlock").read_text() == "{}"


def start(root: Path, server: Mapping[str, str], *words: str) -> "subprocess.Popen[str]":
    """Start a module in a copy of the checkout."""
    gone = ("AFM_HOME", "PREFECT_API_URL")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    extra = {"PYTHONPATH": str(root), "AFM_LINEAGE": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=root,
        env={**environment, **extra, **server},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 300.0) -> str:
    """Wait for a run that must succeed."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One Prefect server for all that can share it; yields the variables that lead there."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as made:
        known = made.environment.items()
        yield {name: value for name, value in known if name.startswith("PREFECT_")}


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


def strike(process: "subprocess.Popen[str]", root: Path, victim: str, delay_s: float) -> None:
    """Kill one part of a run, so many seconds after its flow has begun or as soon as the part is there."""

    def is_over() -> bool:
        return process.poll() is not None

    wait_until(lambda: playing(root, "flow") or is_over())
    moment = time.monotonic() + delay_s
    wait_until(lambda: time.monotonic() > moment or is_over())
    wait_until(lambda: playing(root, victim) or is_over())
    kill_all(playing(root, victim))


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """An undisturbed run, which goes on beside the disturbed one; waits for its outs."""
    root = tmp_path / "calm"
    make_copy(REPO, root, REAL)
    process = start(root, {}, "dvc", "repro", TARGET)

    def wait() -> dict[str, str]:
        finish(process)
        return outs(root)

    yield wait
    end_everything(root)


@pytest.fixture
def disturbed(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "disturbed"
    make_copy(REPO, root, REAL)
    yield root
    end_everything(root)


def test_real_stages_come_out_the_same(
    disturbed: Path, calm: Callable[[], dict[str, str]], server: dict[str, str]
) -> None:
    chance = random.Random("real stages")
    codes = []
    for victim in ("flow", "stage"):
        process = start(disturbed, server, "flows.cli", "run", TARGET)
        strike(process, disturbed, victim, chance.uniform(5, 20))
        process.communicate(timeout=300)
        codes.append(process.returncode)
        assert_only_the_job_is_left(disturbed)
    assert any(codes), "none was hit"
    finish(start(disturbed, server, "flows.cli", "run", TARGET))
    assert_tidy(disturbed)
    assert outs(disturbed) == calm()


PARTS = ("afm", "flow", "dvc", "submit", "stage", "server", "guard")


def storm(root: Path, target: Sequence[str], chance: random.Random, max_delay_s: float) -> bool:
    """Start a run with a server of its own and kill one part of it; tell whether it came to its end."""
    victim = chance.choice(PARTS)
    process = start(root, {}, "flows.cli", "run", *target)
    strike(process, root, victim, chance.uniform(0, max_delay_s))
    output, _ = process.communicate(timeout=3000)
    print(f"killed {victim}: exit code {process.returncode}\n{output[-1500:]}")
    assert_only_the_job_is_left(root)
    return process.returncode == 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_soak_any_part_at_any_moment(disturbed: Path, calm: Callable[[], dict[str, str]]) -> None:
    chance = random.Random("any part")
    expected = calm()
    num_finished = 0
    for _ in range(20):
        if storm(disturbed, [TARGET], chance, 45):
            num_finished += 1
            assert_tidy(disturbed)
            assert outs(disturbed) == expected
            subprocess.run(
                ["sh", "-c", "rm -rf data .results .scratch dvc.lock .dvc/cache"],
                cwd=disturbed,
                check=True,
            )
    finish(start(disturbed, {}, "flows.cli", "run", TARGET))
    assert_tidy(disturbed)
    assert outs(disturbed) == expected
    assert num_finished < 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", ["first", "second"])
def test_soak_the_whole_graph(
    disturbed: Path, calm: Callable[[], dict[str, str]], seed: str
) -> None:
    chance = random.Random(seed)
    expected = calm()
    for _ in range(6):
        storm(disturbed, [], chance, 120)
    finish(start(disturbed, {}, "flows.cli", "run"), timeout=3000)
    assert_tidy(disturbed)
    assert len(read_lock(disturbed)) == NUM_CELLS
    assert expected.items() <= outs(disturbed).items()
