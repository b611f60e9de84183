"""Let the teacher, without its seeded mistakes, solve the held-out queries."""

from dataclasses import dataclass, field
from pathlib import Path

from afm.jsonl import read_rows, write_json, write_rows
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.evaluation import EvaluateParams
from afm.params.rollout import TeacherParams
from afm.params.tools import SandboxParams
from afm.teachers import flawless
from afm.teachers.demonstrate import Setting, demonstrate, measure, require_few_failures
from afm.types import Query
from stages._stage import Context, Stage, main

CONCURRENCY = 16
"""Rollouts in flight; changes no result."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections that the stage reads."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    tools: ToolsParams
    sandbox: SandboxParams
    teacher: TeacherParams
    evaluate: EvaluateParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage reads."""

    queries: Path
    """Folder with `eval.jsonl`, rows of `Query`."""
    index: Path
    """Search index of the agent."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the stage writes."""

    records: Path
    """JSON Lines of `Trajectory`, one per query; failed ones have `stop_reason` failed."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Demonstrate each query once, and write everything."""
    queries = read_rows(inputs.queries / "eval.jsonl", Query)
    setting = Setting(
        agent=context.agent,
        agent_params=params.agent,
        teacher=flawless(params.teacher),
        tools=params.tools,
        sandbox=params.sandbox,
        index=inputs.index,
        cell=f"demonstrate@{context.agent}",
        num_samples=1,
        seed=params.evaluate.seed,
        concurrency=CONCURRENCY,
    )
    done = demonstrate(setting, queries)
    write_rows(outputs.records, [demonstration.trajectory for demonstration in done])
    require_few_failures(
        done,
        params.evaluate.max_failed_share,
        knob="evaluate.max_failed_share",
        log=outputs.records,
    )
    write_json(outputs.metrics, measure(done, prefix="demonstrate"))


STAGE = Stage(
    name="demonstrate", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent",)
)

if __name__ == "__main__":
    main(STAGE)
