"""Putting the page together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afm.jsonl import write_text
from afm.report.data import AgentData, CellData, TrajectoryPair
from afm.report.pieces import ROLES, pieces
from afm.report.plots import (
    Plot,
    dapo_curve,
    filter_funnel,
    hop_histogram,
    pass_rate_histogram,
    result_bars,
    sft_curve,
    token_histogram,
)
from afm.report.tables import Table, comparison_table, count_table, number, result_table
from afm.report.template import PAGE, SECTIONS, STYLE

if TYPE_CHECKING:
    from jinja2 import Environment
    from pydantic import TypeAdapter


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
        plots=(
            filter_funnel(data),
            pass_rate_histogram(data, bins, threshold),
            hop_histogram(data),
            token_histogram(data, bins),
        ),
    )


def render(sections: Sequence[PageSection], teacher: str) -> str:
    """Render the page as one HTML document that loads nothing else."""
    return (
        environment(page=PAGE)
        .get_template("page")
        .render(sections=sections, teacher=teacher, style=STYLE, roles=ROLES)
    )


def environment(**templates: str) -> "Environment":
    """Return the templates that a page is made of, those of the sections among them."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    loader = DictLoader({"sections": SECTIONS, **templates})
    made = Environment(autoescape=True, undefined=StrictUndefined, loader=loader)
    made.filters |= {"pieces": pieces, "number": number}
    return made


def write_sections(path: Path, sections: Sequence[PageSection]) -> None:
    """Write sections as JSON."""
    write_text(path, _sections().dump_json(tuple(sections), indent=1).decode() + "\n")


def parse_sections(content: bytes) -> tuple[PageSection, ...]:
    """Read what `write_sections` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _sections().validate_json(content)


def _sections() -> "TypeAdapter[tuple[PageSection, ...]]":
    from pydantic import TypeAdapter

    return TypeAdapter(tuple[PageSection, ...])
