"""Running one stage by hand, as a user does."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.unit.synthetic import ROOT, params_tree


def write_params(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Write params.yaml with other values at some dotted keys."""
    tree = params_tree()
    for key, value in changes.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[name] = value
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def run_by_hand(stage: str, *flags: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m stages.<stage>`."""
    command = [sys.executable, "-m", f"stages.{stage}", *map(str, flags)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def finite_or_null(path: Path) -> dict[str, Any]:
    """Read a metrics file and refuse NaN and infinities, which JSON does not have."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {path}")

    return dict(json.loads(path.read_text(), parse_constant=refuse))
