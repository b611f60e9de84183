"""Whatever is killed at whatever moment, the same `dvc repro` afterwards gives what an undisturbed run gives."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from flows.executors.processes import end_members
from flows.hashing import Hasher
from tests.support.toy import Toy

pytestmark = pytest.mark.e2e

PACE = 0.2
ROWS = 12
REPRO = ("--wait-for-lock", "repro")


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path / "toy", num_rows=ROWS)
    made.git_and_dvc()
    yield made
    end_members(str(made.root.resolve()))


def outs(root: Path) -> dict[str, str]:
    """Return the outs in dvc.lock, having checked that the workspace holds exactly them."""
    lock = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    recorded = {out["path"]: out["md5"] for entry in lock.values() for out in entry["outs"]}
    hasher = Hasher(root / "memory")
    assert {path: hasher.md5(root / path) for path in recorded} == recorded
    return recorded


def half_written(toy: Toy) -> list[Path]:
    """Return what a publication that was cut off would leave in data/."""
    return list((toy.root / "data").rglob(".*.new"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    toy = Toy(tmp_path_factory.mktemp("undisturbed") / "toy", num_rows=ROWS)
    toy.git_and_dvc()
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0, output
    return outs(toy.root)


def family(process: "subprocess.Popen[str]", name: str) -> list[psutil.Process]:
    """Return the processes of a running repro that play a part: dvc, submit or stage."""
    dvc = psutil.Process(process.pid)
    if name == "dvc":
        return [dvc]
    module = {"submit": "flows.submit", "stage": "stages.alpha"}[name]
    return [child for child in dvc.children(recursive=True) if module in command_line(child)]


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's words, none where it has just ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("victim", ["stage", "submit", "dvc"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_kill_at_a_random_moment(
    toy: Toy, undisturbed: dict[str, str], victim: str, attempt: int
) -> None:
    process = toy.start(*toy.dvc(*REPRO), pace=PACE)
    while not family(process, "submit"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(random.Random(f"{victim}{attempt}").uniform(0, 4))
    try:
        for one in family(process, victim):
            one.kill()
    except psutil.NoSuchProcess:
        pass  # already over: then the second run must be a no-op, which is a moment too
    process.communicate(timeout=60)
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0, output
    assert outs(toy.root) == undisturbed
    assert toy.marked() == []
    assert half_written(toy) == []
    assert_one_writer_at_a_time(toy)


def assert_one_writer_at_a_time(toy: Toy) -> None:
    """A begin may follow a begin only where the former was killed, which `kill -9` of the stage alone does."""
    begun = [line.split()[1] for line in toy.trace.read_text().splitlines() if "begin" in line]
    ended = [line.split()[1] for line in toy.trace.read_text().splitlines() if "end" in line]
    assert len(ended) == 1
    assert ended[0] == begun[-1]
    assert len(begun) <= 2


def test_an_orphaned_submit_does_not_publish(toy: Toy) -> None:
    """dvc dies, a param changes, a new repro runs: the old command must not put its outputs over the new ones."""
    process = toy.start(*toy.dvc(*REPRO), pace=PACE)
    while not family(process, "stage"):
        time.sleep(0.02)
    orphans = family(process, "submit")
    os.kill(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    psutil.wait_procs(orphans, 30)
    assert "dvc is gone, so nothing is published" in output
    toy.set_rows(2)
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0, output
    while toy.marked():
        time.sleep(0.1)
        end_helpers_of_the_finished(toy)
    assert len((toy.root / "data/alpha/mhqa/rows.txt").read_text().splitlines()) == 2
    outs(toy.root)


def end_helpers_of_the_finished(toy: Toy) -> None:
    """The old stage has no submit that would end its helpers; once it is done they are all that is left."""
    if toy.writers().count("end") == 2:
        end_members(str(toy.root.resolve()))


def test_ctrl_c_in_a_terminal_ends_everything(toy: Toy) -> None:
    process = toy.start(*toy.dvc(*REPRO), pace=PACE)
    while not family(process, "stage"):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert toy.marked() == []


def test_nothing_to_do_is_quick_and_lost_results_come_back(
    toy: Toy, undisturbed: dict[str, str]
) -> None:
    assert toy.run(*toy.dvc(*REPRO))[0] == 0
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0
    assert "up to date" in output
    subprocess.run(["rm", "-r", "data", ".dvc/cache", "dvc.lock"], cwd=toy.root, check=True)
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0, output
    assert "publishing the finished result" in output
    assert outs(toy.root) == undisturbed
    assert toy.writers() == ["begin", "end"]


def test_an_experiment_runs_in_a_copy_and_shares_results(toy: Toy) -> None:
    """`dvc exp run --temp` runs in .dvc/tmp, where no environment is; the store is the checkout's own."""
    code, output = toy.run(*toy.dvc("exp", "run", "--temp", "-S", f"select.num_queries={ROWS + 1}"))
    assert code == 0, output
    assert len(list((toy.root / ".results").glob("*/manifest.json"))) == 2
    toy.set_rows(ROWS + 1)
    code, output = toy.run(*toy.dvc(*REPRO))
    assert code == 0, output
    assert toy.writers() == ["begin", "end"], "the experiment's result is used again"


def test_a_git_worktree_shares_results(toy: Toy) -> None:
    assert toy.run(*toy.dvc(*REPRO))[0] == 0
    tree = toy.root.parent / "tree"
    assert toy.run("git", "worktree", "add", "-q", str(tree))[0] == 0
    code, output = toy.run("sh", "-c", f"cd {tree} && {' '.join(toy.dvc('repro'))}")
    assert code == 0, output
    assert "publishing the finished result" in output
    assert toy.writers() == ["begin", "end"]
