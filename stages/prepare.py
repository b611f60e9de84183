"""Prepare: queries for all later stages, the passages behind the tools, and their index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from afm.cards import data_card
from afm.errors import UserError
from afm.jsonl import write_json, write_rows, write_text
from afm.params.agents import AgentParams
from afm.params.prepare import PrepareParams
from afm.params.tools import SandboxParams
from afm.sources import FactSource, TaskSource, choose_sources
from afm.taskgen.dataset import Dataset, build_fact_dataset, build_task_dataset
from afm.taskgen.grading import require_graders
from afm.taskgen.summary import metrics
from afm.tools import Passage, build_index
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    prepare: PrepareParams
    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    sandbox: SandboxParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Nothing: the data comes with installed packages."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    queries: Path
    """Folder: sft.jsonl, rl.jsonl and eval.jsonl of `Query`, facts.jsonl of `Fact`,
    held_out.jsonl of `HeldOut`."""
    corpus: Path
    """JSONL of `Passage`, held-out entities included; empty for an agent without search."""
    index: Path
    """Folder that `afm.tools.open_toolbox` reads."""
    card: Path
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Make the data set of one agent and write it with its card.

    Raises:
        UserError: sources that cannot give what params ask for, or a query that no answer could solve.
    """
    agent = context.agent
    if agent not in params.prepare.sources or agent not in params.prepare.counts:
        raise UserError(
            f"agent {agent!r} needs an entry in prepare.sources, which has "
            f"{sorted(params.prepare.sources)}, and in prepare.counts, which has "
            f"{sorted(params.prepare.counts)}"
        )
    sources = choose_sources(
        params.prepare.sources[agent], params.prepare.exclude.sources, where=f"sources.{agent}"
    )
    dataset = _build(sources, params, outputs.index, agent)
    files = {f"{split}.jsonl": rows for split, rows in dataset.questions.queries.items()}
    require_graders(files, agent=agent, reward=params.agent.reward, sandbox=params.sandbox)
    for file, queries in files.items():
        write_rows(outputs.queries / file, queries)
    write_rows(outputs.queries / "facts.jsonl", dataset.facts)
    write_rows(outputs.queries / "held_out.jsonl", dataset.held_out)
    write_rows(outputs.corpus, dataset.passages)
    write_text(outputs.card, data_card(dataset, sources, agent=agent, prepare=params.prepare))
    write_json(outputs.metrics, metrics(dataset))


def _build(
    sources: dict[str, FactSource] | dict[str, TaskSource], params: Params, index: Path, agent: str
) -> Dataset:
    def make_index(passages: Sequence[Passage]) -> Path:
        build_index(passages, index)
        return index

    if all(isinstance(source, FactSource) for source in sources.values()):
        return build_fact_dataset(
            cast(dict[str, FactSource], sources),
            agent=agent,
            prepare=params.prepare,
            agent_params=params.agent,
            sandbox_params=params.sandbox,
            make_index=make_index,
        )
    # No search tool opens this index, but every agent's stages declare one.
    write_rows(index / "passages.jsonl", [])
    return build_task_dataset(
        cast(dict[str, TaskSource], sources), agent=agent, prepare=params.prepare
    )


STAGE = Stage(
    name="prepare", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent",)
)

if __name__ == "__main__":
    main(STAGE)
