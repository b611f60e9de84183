"""Evaluate: let one served model answer the held-out queries with tools; generates only, score judges."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING

from afm.agents import stop_strings, user_message
from afm.averages import mean
from afm.chat import ModelClient
from afm.errors import UserError
from afm.evaluation import Donors, FailureLimit, Key, PartialRecords, in_order, is_control, plan
from afm.jsonl import read_rows, write_json, write_rows
from afm.model_files import load_tokenizer, resolve_model
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.evaluation import EvaluateParams
from afm.params.scales import PromptStyle, ServeParams
from afm.params.tools import SandboxParams
from afm.rollout import Limits
from afm.serving_client import with_served_model
from afm.sessions import Decoding, prompt_ids
from afm.tools.facts import count_calls
from afm.types import Query, StopReason, Trajectory
from stages._stage import Context, Stage, main

if TYPE_CHECKING:
    from afm.evaluator import Evaluator
    from afm.tools import Toolbox

SERVER_LOG = "vllm.log"
PARTIAL = "records.partial.jsonl"


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    tools: ToolsParams
    sandbox: SandboxParams
    evaluate: EvaluateParams
    prompt: PromptStyle = field(metadata={"key": "scales.{scale}.prompt"})
    serve: ServeParams = field(metadata={"key": "scales.{scale}.serve"})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read."""

    model: Path
    """Hugging Face folder of the variant, or a hub model's manifest."""
    queries: Path
    """Folder with `eval.jsonl`, rows of `Query`."""
    index: Path
    """Search index of the agent's tools."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    records: Path
    """JSONL of `Trajectory`, by policy, query and sample index; failed ones have `stop_reason` failed."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Do the rollouts that are not finished yet, and write all.

    Raises:
        UserError: no query, a prompt without room, no server, or too many failed rollouts.
    """
    path = inputs.queries / "eval.jsonl"
    queries = read_rows(path, Query)[: params.serve.num_eval_queries]
    if not queries:
        raise UserError(f"{path} holds no query: raise prepare.counts.{context.agent}.eval")
    planned = plan(queries, params.evaluate, context.variant)
    done = PartialRecords(context.scratch / PARTIAL).read()
    waiting = [item for item in planned if item.key not in done]
    if waiting:
        evaluator = evaluator_of(params, inputs, context, queries, total=len(planned))

        async def work(client: ModelClient) -> dict[Key, Trajectory]:
            return await evaluator.run(client, waiting, done, concurrency=params.serve.max_num_seqs)

        done |= with_served_model(
            inputs.model,
            params.serve,
            work,
            log=context.scratch / SERVER_LOG,
            facts=context.facts,
        )
    records = in_order(planned, (done[item.key] for item in planned))
    write_rows(outputs.records, records)
    write_json(outputs.metrics, summarise(records))


def evaluator_of(
    params: Params, inputs: Inputs, context: Context, queries: Sequence[Query], *, total: int
) -> "Evaluator":
    """Gather what the rollouts share; checks every prompt and opens the tools before any server starts."""
    from afm.evaluator import Evaluator

    tokenizer = load_tokenizer(resolve_model(inputs.model))
    max_model_len = params.serve.max_model_len
    message = bind(user_message, context.agent, params.agent, params.prompt.root)
    return Evaluator(
        agent=context.agent,
        agent_params=params.agent,
        tokenizer=tokenizer,
        prompts={
            query.query_id: prompt_ids(
                tokenizer, message(query.question), max_model_len=max_model_len
            )
            for query in queries
        },
        decoding=Decoding(
            temperature=params.evaluate.temperature,
            top_p=params.evaluate.top_p,
            stop=stop_strings(params.agent),
            max_model_len=max_model_len,
        ),
        limits=Limits(
            max_tool_calls=params.agent.max_tool_calls,
            max_response_tokens=params.serve.max_response_tokens,
        ),
        toolbox=toolbox_of(params, inputs, context),
        donors=Donors(queries, params.evaluate.seed),
        partial=PartialRecords(context.scratch / PARTIAL),
        failures=FailureLimit(
            total, params.evaluate.max_failed_share, log=context.scratch / SERVER_LOG
        ),
    )


def toolbox_of(params: Params, inputs: Inputs, context: Context) -> "Toolbox":
    """Open the agent's tools."""
    from afm.tools.assembly import assemble_toolbox

    return assemble_toolbox(
        params.agent,
        params.sandbox,
        params.tools,
        inputs.index,
        cell=f"evaluate@{context.agent}-{context.scale}-{context.variant}",
    )


def summarise(records: Sequence[Trajectory]) -> dict[str, float]:
    """Count the records; means are over rollouts that are neither controls nor failed."""
    reasons = Counter(record.stop_reason for record in records)
    own = [
        record
        for record in records
        if not is_control(record.policy) and record.stop_reason is not StopReason.FAILED
    ]
    return {
        "evaluate/queries": len({record.query_id for record in records}),
        "evaluate/rollouts": len(records),
        "evaluate/controls": sum(is_control(record.policy) for record in records),
        "evaluate/failed": reasons[StopReason.FAILED],
        "evaluate/tool_calls_mean": mean([record.num_tool_calls for record in own]),
        "evaluate/policy_tokens_mean": mean([record.usage.policy_tokens for record in own]),
        "evaluate/policy_tokens": sum(record.usage.policy_tokens for record in records),
        "evaluate/observation_tokens": sum(r.usage.observation_tokens for r in records),
        **count_calls(records, prefix="evaluate"),
    } | {f"evaluate/stop/{reason}": reasons[reason] for reason in StopReason}


STAGE = Stage(
    name="evaluate",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent", "scale", "variant"),
    environment="serve",
)

if __name__ == "__main__":
    main(STAGE)
