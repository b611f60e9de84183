"""dapo: agentic reinforcement learning of the SFT model on verifiable queries, with verl's DAPO (paper 3.3)."""

from dataclasses import dataclass, field
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import read_rows, write_json
from afm.params.agents import AgentsParams
from afm.params.backends import ToolsParams
from afm.params.judge import AskingParams, JudgeModel
from afm.params.scales import DapoParams, PromptStyle, ServeParams
from afm.params.tools import SandboxParams
from afm.rewards import REWARDS
from afm.training.verl.checkpoints import step_folder
from afm.training.verl.export import export_model
from afm.training.verl.journal import read_steps, without_seconds, write_steps
from afm.training.verl.launch import train
from afm.training.verl.run import DapoRun, JudgeSeat
from afm.training.verl.summary import card, summarise
from afm.types import Query
from stages._stage import JUDGE_KEY, Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections that the stage reads."""

    agents: AgentsParams
    tools: ToolsParams
    sandbox: SandboxParams
    prompt: PromptStyle = field(metadata={"key": "scales.{scale}.prompt"})
    dapo: DapoParams = field(metadata={"key": "scales.{scale}.dapo"})
    serve: ServeParams = field(metadata={"key": "scales.{scale}.serve"})
    asking: AskingParams = field(metadata={"key": "judge.asking"})
    judge: JudgeModel | None = field(metadata={"key": JUDGE_KEY})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage reads."""

    model: Path
    """Hugging Face folder of the SFT model."""
    queries: Path
    """JSONL of `Query`: what select kept."""
    index: Path
    """Search index of the agent's tools."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the stage writes."""

    model: Path
    """Hugging Face folder of the RL model."""
    steps: Path
    """JSONL, one row per training step; `queries` names those that it drew, by what became of them."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Train, export the last checkpoint, and summarise the steps."""
    settings = _settings(params, inputs, context)
    _check_queries(settings)
    calibration = _train(settings, params, context)
    last = step_folder(settings.checkpoints, settings.dapo.total_steps)
    rows = without_seconds(read_steps(context.steps))
    metrics = summarise(rows) | calibration
    text = card(settings, metrics)
    export_model(last, inputs.model, outputs.model, card=text, dtype=params.serve.dtype)
    write_steps(outputs.steps, rows)
    write_json(outputs.metrics, metrics)


def _train(settings: DapoRun, params: Params, context: Context) -> dict[str, float]:
    """Train, with the agent's judge at hand where it has one; returns the judge's calibration.

    Raises:
        UserError: the judge cannot be reached, or agrees with too little of the gold set.
    """
    from afm.judging import open_bench

    bench = open_bench(
        settings.agents[context.agent],  # type: ignore[index]
        params.judge,
        params.asking,
        endpoints=context.endpoints,
        scratch=context.scratch,
        facts=context.facts,
    )
    if bench is None:
        train(settings)
        return {}
    with bench.open() as endpoint:
        calibration = bench.calibrated(endpoint)
        seat = JudgeSeat(
            model=bench.model,
            asking=bench.asking,
            access=bench.access,
            base_url=endpoint.base_url,
            api_key_variable=endpoint.api_key_variable,
        )
        train(settings.model_copy(update={"judge": seat}))
    return calibration.metrics("dapo")


def _settings(params: Params, inputs: Inputs, context: Context) -> DapoRun:
    return DapoRun(
        agent=context.agent,
        scale=context.scale,
        model=inputs.model.resolve(),
        queries=inputs.queries.resolve(),
        index=inputs.index.resolve(),
        agents=params.agents.root,
        tools=params.tools,
        sandbox=params.sandbox,
        prompt=params.prompt.root,
        dapo=params.dapo.for_agent(context.agent),
        serve=params.serve,
        scratch=context.scratch.resolve(),
        steps=context.steps.resolve(),
    )


def _check_queries(settings: DapoRun) -> None:
    found = len(read_rows(settings.queries, Query))
    if found == 0:
        raise UserError(
            f"{settings.queries} holds no query: raise select.max_pass_rate or prepare.counts"
        )
    judged = [
        agent
        for agent in settings.dapo.fixture_agents
        if agent != settings.agent and REWARDS[settings.agents[agent].reward].is_judged
    ]
    if judged:
        raise UserError(
            f"dapo.fixture_agents {judged} need a judge, but only {settings.agent}'s is at hand: leave them out"
        )
    longest = settings.dapo.max_prompt_tokens + settings.max_response_tokens
    if longest > settings.serve.max_model_len:
        raise UserError(
            f"dapo.max_prompt_tokens plus the longest response is {longest} tokens, more than "
            f"serve.max_model_len {settings.serve.max_model_len}"
        )


STAGE = Stage(
    name="dapo",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent", "scale"),
    environment="rl",
    launcher="ray",
)

if __name__ == "__main__":
    main(STAGE)
