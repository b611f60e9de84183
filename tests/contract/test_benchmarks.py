"""Benchmarks are modules of a package: one that is run by its path finds none of the others."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_none_runs_a_file_by_its_path(path: Path) -> None:
    """Where one starts itself again, for instance as another user, it names the module."""
    uses = re.findall(r"__file__(.{0,24})", path.read_text())
    assert all(re.match(r"\)\.(resolve\(\)\.)?parent", after) for after in uses), uses
