"""Let the teacher solve the SFT queries through the agent's tools, and record what it does."""

from dataclasses import dataclass, field
from pathlib import Path

from afm.jsonl import read_rows, write_json, write_rows
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.rollout import RolloutParams, TeacherParams
from afm.params.tools import SandboxParams
from afm.teachers.demonstrate import Setting, demonstrate, measure, require_few_failures
from afm.types import Query
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections that the stage reads."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    tools: ToolsParams
    sandbox: SandboxParams
    teacher: TeacherParams
    rollout: RolloutParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage reads."""

    queries: Path
    """Folder with `sft.jsonl`, rows of `Query`."""
    index: Path
    """Search index of the agent."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the stage writes."""

    trajectories: Path
    """JSON Lines of `Trajectory`: every rollout that did not fail."""
    failures: Path
    """JSON Lines of `Trajectory` whose `error` says what failed."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Roll out, then write what finished and what failed."""
    queries = read_rows(inputs.queries / "sft.jsonl", Query)
    setting = Setting(
        agent=context.agent,
        agent_params=params.agent,
        teacher=params.teacher,
        tools=params.tools,
        sandbox=params.sandbox,
        index=inputs.index,
        cell=f"rollout@{context.agent}",
        num_samples=params.rollout.num_samples,
        seed=params.rollout.seed,
        concurrency=params.rollout.concurrency,
    )
    done = demonstrate(setting, queries)
    write_rows(outputs.failures, [d.trajectory for d in done if d.has_failed])
    require_few_failures(
        done,
        params.rollout.max_failed_share,
        knob="rollout.max_failed_share",
        log=outputs.failures,
    )
    write_rows(outputs.trajectories, [d.trajectory for d in done if not d.has_failed])
    write_json(outputs.metrics, measure(done, prefix="rollout"))


STAGE = Stage(
    name="rollout", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent",)
)

if __name__ == "__main__":
    main(STAGE)
