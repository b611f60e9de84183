"""The record of a training run: JSON Lines, one row per optimiser step, appended live."""

import json
from pathlib import Path
from typing import Any

from afm.jsonl import write_text


def whole_lines(steps: Path) -> list[str]:
    """Return the complete lines; a kill can leave a part of one at the end."""
    text = steps.read_text(encoding="utf-8") if steps.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def cut_back(steps: Path, last: int) -> None:
    """Keep the rows of the first `last` steps."""
    write_text(steps, "".join(whole_lines(steps)[:last]))


def read_steps(steps: Path) -> list[dict[str, Any]]:
    """Read the rows of a finished run."""
    return [json.loads(line) for line in whole_lines(steps)]
