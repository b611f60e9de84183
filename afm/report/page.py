"""Putting the page together."""

from collections.abc import Sequence
from dataclasses import dataclass

from afm.report.data import AgentData, CellData, TrajectoryPair
from afm.report.plots import (
    Plot,
    dapo_curve,
    filter_funnel,
    pass_rate_histogram,
    result_bars,
    sft_curve,
)
from afm.report.tables import Table, comparison_table, count_table, result_table
from afm.report.template import PAGE


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSection:
    """One section of the page: a heading, tables, plots and sample trajectories."""

    id: str
    title: str
    note: str = ""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    pairs: tuple[TrajectoryPair, ...] = ()


def cell_sections(data: CellData) -> tuple[PageSection, ...]:
    """Build the sections of one cell: results, training curves, sample trajectories."""
    verdict = "passed" if data.gate["passed"] else "not passed"
    return (
        PageSection(
            id=f"results-{data.cell}",
            title=f"Results: {data.cell}",
            note=f"Gate {verdict}: champion is {data.gate['champion']}.",
            tables=(result_table(data), comparison_table(data)),
            plots=(result_bars(data),),
        ),
        PageSection(
            id=f"training-{data.cell}",
            title=f"Training: {data.cell}",
            plots=(sft_curve(data), dapo_curve(data)),
        ),
        PageSection(
            id=f"trajectories-{data.cell}",
            title=f"Held-out trajectories: {data.cell}",
            pairs=data.pairs,
        ),
    )


def data_section(data: AgentData, bins: int, threshold: float) -> PageSection:
    """Build the section of one agent's data: funnel, pass rates, counts."""
    return PageSection(
        id=f"data-{data.agent}",
        title=f"Data: {data.agent}",
        tables=(count_table(data),),
        plots=(filter_funnel(data), pass_rate_histogram(data, bins, threshold)),
    )


def render(sections: Sequence[PageSection], teacher: str) -> str:
    """Render the page as one HTML document that loads nothing else."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(PAGE).render(sections=sections, teacher=teacher)
