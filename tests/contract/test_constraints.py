"""Every environment is pinned to the last package, and environments that must agree do."""

import re
from pathlib import Path

import pytest

from flows.environment import ENVIRONMENTS
from flows.setup import GPU_VARIANTS
from tests.support.toy import REPO

FOLDER = REPO / "constraints"
FILES = sorted(path for path in FOLDER.glob("*.txt") if not path.name.startswith("overrides-"))
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;*]+)(\s*;.*)?")


def pins(path: Path) -> dict[str, set[str]]:
    """Return the versions by package; more than one where a marker chooses."""
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        match = PIN.fullmatch(line.strip())
        if match:
            found.setdefault(match["name"].lower(), set()).add(match["version"])
    return found


def test_each_environment_has_its_file() -> None:
    wanted = {*ENVIRONMENTS, *(f"{name}-gpu" for name in GPU_VARIANTS)}
    assert {path.stem for path in FILES} == wanted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_line_is_one_exact_version(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines()]
    loose = [
        line for line in lines if line and not line.startswith("#") and not PIN.fullmatch(line)
    ]
    assert loose == []
    assert len(pins(path)) > 10


@pytest.mark.parametrize("package", ["verl", "transformers"])
def test_both_rl_environments_agree(package: str) -> None:
    versions = [pins(FOLDER / f"{name}.txt")[package] for name in ("rl", "rl-gpu")]
    assert versions[0] == versions[1]
    assert len(versions[0]) == 1
