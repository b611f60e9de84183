"""The page's plots: data rows first, then one SVG per plot with matplotlib."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from afm.filters import KNOBS
from afm.report.data import VARIANTS, AgentData, CellData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"base": "#8a8f98", "sft": "#2f6fb5", "rl": "#c2571a", "teacher": "#3d8b53"}
"""One colour per variant, told apart also by those who see no red or green."""
WIDTH_IN, HEIGHT_IN = 5.2, 2.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """One plot: what it shows of which agent or cell, in words, in numbers, and as a picture."""

    kind: str
    """Plots of one kind have the same columns."""
    of: str
    """Agent or cell."""
    title: str
    alt: str
    """The plot in one sentence, for readers who do not see it."""
    rows: tuple[Mapping[str, Any], ...]
    svg: str

    @property
    def name(self) -> str:
        """Name that no other plot of the page has."""
        return f"{self.kind}-{self.of}"


def filter_funnel(data: AgentData) -> Plot:
    """Draw how many teacher trajectories each filter left."""
    rows = funnel_rows(data)
    figure, axes = _figure()
    counts = [row["left"] for row in rows]
    axes.barh(range(len(rows)), counts, color=COLOURS["sft"])
    axes.set_yticks(range(len(rows)), [row["step"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("trajectories")
    for position, count in enumerate(counts):
        axes.text(count, position, f" {count:,}", va="center", fontsize=8)
    axes.margins(x=0.15)
    alt = "; ".join(f"{row['step']}: {row['left']}" for row in rows)
    title = "Teacher trajectories through the filters"
    return _plot(figure, "funnel", data.agent, title, alt, rows)


def funnel_rows(data: AgentData) -> list[dict[str, Any]]:
    """List the filter's reasons in the order they apply, with what is left after each."""
    left = int(data.filter["filter/input"] or 0)
    rows: list[dict[str, Any]] = [{"step": "rolled out", "left": left, "dropped": 0}]
    prefix = "filter/dropped/"
    reasons = [key.removeprefix(prefix) for key in data.filter if key.startswith(prefix)]
    for reason in sorted(reasons, key=list(KNOBS).index):
        count = int(data.filter[prefix + reason] or 0)
        left -= count
        rows.append({"step": reason, "left": left, "dropped": count})
    rows.append({"step": "with copies", "left": data.filter["filter/rows_out"], "dropped": 0})
    return rows


def pass_rate_histogram(data: AgentData, bins: int, threshold: float) -> Plot:
    """Draw how often the screening policy solved each candidate query without tools."""
    figure, axes = _figure()
    counts, edges, _ = axes.hist(data.pass_rates, bins=bins, range=(0, 1), color=COLOURS["sft"])
    axes.axvline(threshold, color=COLOURS["rl"], linestyle="--")
    axes.annotate("dropped", (threshold, 0.9), xycoords=("data", "axes fraction"), fontsize=8)
    axes.set(xlabel="pass rate without tools", ylabel="queries", yscale="symlog")
    rows = [
        {"from": float(edges[i]), "to": float(edges[i + 1]), "queries": int(count)}
        for i, count in enumerate(counts)
    ]
    above = sum(rate > threshold for rate in data.pass_rates)
    alt = f"{above} of {len(data.pass_rates)} queries have a pass rate above {threshold}"
    title = "Pass rate of candidate queries"
    return _plot(figure, "pass-rate", data.agent, title, alt, rows)


def hop_histogram(data: AgentData) -> Plot:
    """Draw how many hops the teacher trajectories take, as the filter counted them."""
    rows = [
        {"hops": hops, "trajectories": count} for hops, count in sorted(Counter(data.hops).items())
    ]
    figure, axes = _figure()
    axes.bar(
        [row["hops"] for row in rows], [row["trajectories"] for row in rows], color=COLOURS["sft"]
    )
    axes.set(xlabel="hops", ylabel="trajectories")
    alt = _spread(data.hops, "hops")
    return _plot(figure, "hops", data.agent, "Hops of teacher trajectories", alt, rows)


def token_histogram(data: AgentData, bins: int) -> Plot:
    """Draw how long the teacher trajectories are, observations included."""
    figure, axes = _figure()
    counts, edges, _ = axes.hist(data.tokens, bins=bins, color=COLOURS["teacher"])
    axes.set(xlabel="tokens of a trajectory", ylabel="trajectories")
    rows = [
        {"from": float(edges[i]), "to": float(edges[i + 1]), "trajectories": int(count)}
        for i, count in enumerate(counts)
    ]
    alt = _spread(data.tokens, "tokens")
    return _plot(figure, "tokens", data.agent, "Tokens of teacher trajectories", alt, rows)


def _spread(values: Sequence[int], unit: str) -> str:
    if not values:
        return "no trajectory"
    middle = sorted(values)[len(values) // 2]
    return f"{len(values)} trajectories of {min(values)} to {max(values)} {unit}, the middle one {middle}"


def sft_curve(data: CellData) -> Plot:
    """Draw the SFT loss per step."""
    series = {"loss": COLOURS["sft"]}
    return _curve(data.sft_steps, "sft", data.cell, series, "loss per token")


def dapo_curve(data: CellData) -> Plot:
    """Draw mean reward and accuracy per DAPO step."""
    series = {"reward_mean": COLOURS["rl"], "acc_mean": COLOURS["teacher"]}
    return _curve(data.dapo_steps, "dapo", data.cell, series, "mean over rollouts")


def result_bars(data: CellData) -> Plot:
    """Draw avg@k of every variant with its interval."""
    rows = [_result_row(data, variant) for variant in VARIANTS]
    figure, axes = _figure()
    for position, row in enumerate(rows):
        if row["value"] is None:
            continue
        error = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        axes.bar(position, row["value"], yerr=error, capsize=4, color=COLOURS[row["variant"]])
    axes.set_xticks(range(len(rows)), [row["variant"] for row in rows])
    axes.set(ylim=(0, 1.05), ylabel="avg@k, held out")
    alt = "; ".join(f"{row['variant']}: {_short(row['value'])}" for row in rows)
    return _plot(figure, "result", data.cell, "Held-out queries", alt, rows)


def _result_row(data: CellData, variant: str) -> dict[str, Any]:
    prefix = f"eval/{data.agent}/{variant}/avg_at_k"
    keys = {"value": prefix, "low": f"{prefix}_low", "high": f"{prefix}_high"}
    return {"variant": variant} | {name: data.score.get(key) for name, key in keys.items()}


def _curve(
    steps: Sequence[Mapping[str, Any]],
    kind: str,
    of: str,
    series: Mapping[str, str],
    ylabel: str,
) -> Plot:
    figure, axes = _figure()
    rows = [{"step": row["step"]} | {key: row.get(key) for key in series} for row in steps]
    for key, colour in series.items():
        points = [(row["step"], row[key]) for row in rows if row[key] is not None]
        axes.plot(*zip(*points, strict=True), color=colour, label=key, linewidth=1.2)
    axes.set(xlabel="step", ylabel=ylabel)
    axes.legend(frameon=False, fontsize=8)
    first, last = rows[0], rows[-1]
    alt = "; ".join(f"{key} from {_short(first[key])} to {_short(last[key])}" for key in series)
    title = f"{kind.upper()}: {' and '.join(series)} per step"
    return _plot(figure, kind, of, title, alt, rows)


def _figure() -> "tuple[Figure, Axes]":
    import matplotlib

    matplotlib.use("Agg")
    # Fixed ids and no date: the same numbers must give the same bytes.
    matplotlib.rcParams.update({"svg.hashsalt": "afm", "svg.fonttype": "none", "font.size": 9})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _plot(
    figure: "Figure",
    kind: str,
    of: str,
    title: str,
    alt: str,
    rows: Sequence[Mapping[str, Any]],
) -> Plot:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return Plot(
        kind=kind, of=of, title=title, alt=alt, rows=tuple(rows), svg=svg[svg.index("<svg") :]
    )


def _short(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
