"""A disk that is full before or while a stage runs, on a real small filesystem."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.executors.processes import end_members
from tests.support.toy import ALPHA_WORDS, Toy

pytestmark = pytest.mark.e2e

SIZE_MIB = 4
SUBMIT = ("bin/submit", *ALPHA_WORDS)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of `SIZE_MIB`."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small filesystem cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def toy(tmp_path: Path, small: Path) -> Iterator[Toy]:
    """Its results and scratch lie on the small filesystem, and it wants to write half as much again as fits there."""
    made = Toy(tmp_path / "toy", num_rows=6)
    (small / ".venv").symlink_to(made.root / ".venv")
    (made.root / "source.txt").write_text("x" * (SIZE_MIB << 18))
    made.extra = {"AFM_HOME": str(small)}
    yield made
    end_members(str(small.resolve()))


def test_a_stage_without_room_does_not_start(toy: Toy, small: Path) -> None:
    code, output = toy.run(*SUBMIT)
    assert code == 2, output
    assert (
        f"alpha@mhqa does not start: {small}/.results has 4.2 MB free, but 0 B will be written"
        in output
    )
    assert "`afm gc` lists what can go" in output
    assert not toy.trace.exists()


def test_a_disk_that_fills_up_is_the_outcome_and_leaves_no_half_result(
    toy: Toy, small: Path
) -> None:
    toy.extra["AFM_MIN_FREE_GB"] = "0"
    code, output = toy.run(*SUBMIT)
    assert code == 1, output
    (last,) = [line for line in output.splitlines() if line.startswith("submit: alpha@mhqa")][-1:]
    assert ": disk: the disk is full: OSError: [Errno 28] No space left on device" in last
    assert list((small / ".results").iterdir()) == []
    assert not (toy.root / "data").exists()
    (failed,) = (small / ".lineage" / "failed").glob("*.json")
    assert '"outcome": "disk"' in failed.read_text()
    subprocess.run(["mount", "-o", "remount,size=40m", str(small)], check=True)
    code, output = toy.run(*SUBMIT)
    assert code == 0, output
    assert (toy.root / "data" / "alpha" / "mhqa" / "rows.txt").stat().st_size > 5 << 20
