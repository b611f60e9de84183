"""What a benchmark prints: one JSON line per figure, with the bar that it must clear."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NoReturn


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure and the bar it must clear."""

    name: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    target: str
    passed: bool


def at_least(name: str, value: float, bar: float, unit: str = "share") -> Figure:
    """Return a figure that must be above `bar`."""
    return Figure(
        name=name,
        value=value,
        unit=unit,
        baseline=None,
        ratio=None,
        target=f"> {bar}",
        passed=value > bar,
    )


def at_most(name: str, value: float, bar: float, unit: str) -> Figure:
    """Return a figure that may not exceed `bar`."""
    return Figure(
        name=name,
        value=value,
        unit=unit,
        baseline=None,
        ratio=None,
        target=f"<= {bar}",
        passed=value <= bar,
    )


def print_figures(figures: Iterable[Figure]) -> NoReturn:
    """Print figures as they come and exit; 1 where one misses its bar."""
    missed = False
    for figure in figures:
        row = asdict(figure)
        row["pass"] = row.pop("passed")
        missed |= not figure.passed
        print(json.dumps(row), flush=True)
    sys.exit(missed)
