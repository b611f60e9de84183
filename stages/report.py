"""Report: tables, plots and one self-contained HTML page over every cell of the run."""

from dataclasses import dataclass
from pathlib import Path

from afm.jsonl import write_json, write_text
from afm.params.evaluation import ReportParams
from afm.params.rollout import TeacherParams
from afm.params.run import RunParams
from afm.params.screening import SelectParams
from afm.report.data import Folders, read_agent, read_cell
from afm.report.page import PageSection, cell_sections, data_section, render, write_sections
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    run: RunParams
    teacher: TeacherParams
    select: SelectParams
    report: ReportParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Output folders of the other stages; cells that the run no longer names are ignored."""

    prepare: Path
    rollout: Path
    filter: Path
    screen: Path
    select: Path
    sft: Path
    dapo: Path
    evaluate: Path
    score: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    page: Path
    """One HTML file without any reference to another."""
    plots: Path
    """A folder for each kind of plot; in it JSON files, one per plot: a list of rows."""
    sections: Path
    """What the page shows, for other pages, as JSON."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Read every cell named by `run` and write the page."""
    folders = Folders(**vars(inputs))
    sections: list[PageSection] = []
    metrics: dict[str, float | int | None] = {}
    for agent in params.run.agents:
        for scale in params.run.scales:
            cell = read_cell(folders, agent, scale, params.report.num_sample_trajectories)
            sections += cell_sections(cell)
            metrics |= {f"{scale}/{key}": value for key, value in cell.score.items()}
    for agent in params.run.agents:
        data = read_agent(folders, agent)
        threshold = params.select.max_pass_rate[agent]
        sections.append(data_section(data, params.report.histogram_bins, threshold))
    for plot in (plot for section in sections for plot in section.plots):
        write_json(outputs.plots / plot.kind / f"{plot.of}.json", plot.rows)
    write_text(outputs.page, render(sections, params.teacher.name))
    write_sections(outputs.sections, sections)
    write_json(outputs.metrics, metrics)


STAGE = Stage(name="report", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=())

if __name__ == "__main__":
    main(STAGE)
