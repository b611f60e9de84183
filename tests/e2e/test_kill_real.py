"""Real stages under the flow, killed at random moments: the same hashes as an undisturbed run, and nothing left."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from flows.copies import SMOKE, make_copy
from flows.lock_file import read_lock
from tests.support.flow_runs import assert_tidy, finish, forget, outs, shared_server, start, strike
from tests.support.processes import assert_only_the_job_is_left, end_everything
from tests.support.toy import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(5400)]

REAL = SMOKE | {"prepare.counts.mhqa": "{sft: 60, rl: 20, eval: 20}", "select.num_queries": "8"}
TARGET = "sft@mhqa-smoke"
NUM_CELLS = 14


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with shared_server(tmp_path_factory.mktemp("prefect")) as variables:
        yield variables


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
            forget(disturbed)
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
        if storm(disturbed, [], chance, 120):
            forget(disturbed)
    finish(start(disturbed, {}, "flows.cli", "run"), timeout=3000)
    assert_tidy(disturbed)
    assert len(read_lock(disturbed)) == NUM_CELLS
    assert expected.items() <= outs(disturbed).items()
