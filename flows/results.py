"""The result table of a finished run, read from score's metrics, and the time that each cell took."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from afm.jsonl import read_json
from afm.params.root import read_params

VARIANTS = ("base", "sft", "rl", "teacher")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultRow:
    """One variant on the held-out queries; None where undefined."""

    cell: str
    variant: str
    avg_at_k: float | None
    low: float | None
    high: float | None
    greedy: float | None
    shuffled: float | None
    """avg@k with the observations of other questions."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A paired difference of avg@k with its interval."""

    cell: str
    name: str
    value: float | None
    low: float | None
    high: float | None


def read_results(root: Path) -> list[ResultRow]:
    """Read the result rows of every cell that has been scored."""
    return [
        _row(metrics, agent, cell, variant)
        for agent, cell, metrics in _scored(root)
        for variant in VARIANTS
    ]


def read_differences(root: Path) -> list[Difference]:
    """Read the paired differences of every cell that has been scored."""
    return [
        Difference(
            cell=cell,
            name=name,
            value=metrics.get(f"eval/{agent}/{name}"),
            low=metrics.get(f"eval/{agent}/{name}_low"),
            high=metrics.get(f"eval/{agent}/{name}_high"),
        )
        for agent, cell, metrics in _scored(root)
        for name in ("sft_minus_base", "rl_minus_sft")
    ]


def _scored(root: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    run = read_params(root / "params.yaml").run
    for agent in run.agents:
        for scale in run.scales:
            path = root / "data" / "score" / f"{agent}-{scale}" / "metrics.json"
            if path.exists():
                yield agent, f"{agent}-{scale}", read_json(path)


def _row(metrics: dict[str, Any], agent: str, cell: str, variant: str) -> ResultRow:
    prefix = f"eval/{agent}/{variant}"
    return ResultRow(
        cell=cell,
        variant=variant,
        avg_at_k=metrics.get(f"{prefix}/avg_at_k"),
        low=metrics.get(f"{prefix}/avg_at_k_low"),
        high=metrics.get(f"{prefix}/avg_at_k_high"),
        greedy=metrics.get(f"{prefix}/greedy"),
        shuffled=metrics.get(f"{prefix}_shuffled/avg_at_k"),
    )
