"""The page's tables, as plain rows of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from afm.report.data import VARIANTS, AgentData, CellData


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table: caption, column heads, rows of cells."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_folded: bool = False
    """Whether only its caption shows until a reader asks for it."""


def result_table(data: CellData) -> Table:
    """Tabulate base, SFT, RL and teacher on the held-out queries, with intervals and efficiency."""
    return Table(
        caption=f"Held-out queries, {data.cell}",
        head=(
            "variant",
            "avg@k",
            "interval",
            "pass@k",
            "greedy",
            "well-formed",
            "tool calls",
            "tokens per solved",
            "calls per solved",
            "failed",
        ),
        rows=tuple(_result_row(data, variant) for variant in VARIANTS),
    )


def comparison_table(data: CellData) -> Table:
    """Tabulate the paired differences and the shuffled-observation control."""
    get = data.score.get
    prefix = f"eval/{data.agent}"
    rows = [
        (
            name,
            number(get(f"{prefix}/{key}")),
            interval(get(f"{prefix}/{key}_low"), get(f"{prefix}/{key}_high")),
        )
        for name, key in (("SFT minus base", "sft_minus_base"), ("RL minus SFT", "rl_minus_sft"))
    ]
    rows += [
        (
            f"{variant.upper()}, observations shuffled",
            number(get(f"{prefix}/{variant}_shuffled/avg_at_k")),
            "",
        )
        for variant in ("sft", "rl")
    ]
    return Table(
        caption="Differences (paired bootstrap over queries) and control",
        head=("what", "avg@k", "interval"),
        rows=tuple(rows),
    )


def count_table(data: AgentData) -> Table:
    """Tabulate how many rows each data stage read and left."""
    shown = [
        *_matching(data.prepare, "prepare/queries/"),
        *_matching(data.rollout, "rollout/rollouts", "rollout/failed"),
        *_matching(data.filter, "filter/"),
        *_matching(data.select, "select/"),
    ]
    return Table(caption=f"Rows, {data.agent}", head=("what", "rows"), rows=tuple(shown))


def number(value: Any, digits: int = 3) -> str:
    """Format a number; an undefined one is a dash."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def interval(low: Any, high: Any) -> str:
    """Format an interval; an undefined one is a dash."""
    return "-" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def _result_row(data: CellData, variant: str) -> tuple[str, ...]:
    prefix = f"eval/{data.agent}/{variant}"
    get = data.score.get
    return (
        variant,
        number(get(f"{prefix}/avg_at_k")),
        interval(get(f"{prefix}/avg_at_k_low"), get(f"{prefix}/avg_at_k_high")),
        number(get(f"{prefix}/pass_at_k")),
        number(get(f"{prefix}/greedy")),
        number(get(f"{prefix}/well_formed_share")),
        number(get(f"{prefix}/tool_calls_mean"), 2),
        number(get(f"{prefix}/tokens_per_solved"), 0),
        number(get(f"{prefix}/tool_calls_per_solved"), 2),
        number(get(f"{prefix}/failed_share")),
    )


def _matching(metrics: Mapping[str, Any], *prefixes: str) -> Sequence[tuple[str, str]]:
    return [(key, number(value)) for key, value in metrics.items() if key.startswith(prefixes)]
