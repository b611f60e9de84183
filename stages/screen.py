"""Screen: how often the screening policy answers each candidate query without tools (paper 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial as bind
from pathlib import Path

from afm.agents import stop_strings, user_message
from afm.averages import mean, share
from afm.chat import Completion, ModelClient, Sampling
from afm.endpoint_client import read_endpoint, with_endpoint
from afm.errors import UserError
from afm.ids import derived_seed
from afm.jobs import run_many
from afm.jsonl import read_rows, write_json, write_rows
from afm.model_files import load_tokenizer, resolve_model
from afm.params.agents import AgentParams
from afm.params.endpoints import EndpointModel
from afm.params.scales import PromptStyle, ServeParams
from afm.params.screening import ScreenParams
from afm.params.tools import SandboxParams
from afm.progress import Progress
from afm.rewards import closed_book_reward, grade_answer
from afm.screening import PassRate, ScreenSample, pass_rates
from afm.screening_prompt import closed_book_message
from afm.serving_client import with_served_model
from afm.sessions import completion_text, prompt_ids
from afm.tags import elements
from afm.types import Query
from stages._stage import Context, Stage, main

THRESHOLDS = (0.0, 0.3, 0.5, 0.75, 0.875)
"""Pass rates at which the share of queries above is reported."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    sandbox: SandboxParams
    screen: ScreenParams
    prompt: PromptStyle = field(metadata={"key": "scales.{scale}.prompt"})
    serve: ServeParams = field(metadata={"key": "scales.{scale}.serve"})
    endpoint: EndpointModel | None = field(metadata={"key": "endpoints.{endpoint}.model"})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read."""

    queries: Path
    """Folder with `rl.jsonl`, rows of `Query`: the candidates."""
    model: Path | None
    """Hugging Face folder of the screening policy, or a hub model's manifest; None where an endpoint is asked."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    samples: Path
    """JSONL of `ScreenSample`, by query and sample index."""
    pass_rates: Path
    """JSONL of `PassRate`, one per candidate."""
    metrics: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Closed:
    """How one agent's queries are asked without tools."""

    messages: dict[str, str]
    """Query id -> the user message."""
    max_tokens: int
    stop: tuple[str, ...]
    is_tagged: bool
    """Whether the answer stands in an answer tag; else it is the whole reply."""


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Sample, grade, and count.

    Raises:
        UserError: no candidate, a prompt without room, or no server.
    """
    path = inputs.queries / "rl.jsonl"
    queries = read_rows(path, Query)
    if not queries:
        raise UserError(f"{path} holds no query: raise prepare.counts.{context.agent}.rl")
    closed = closed_questions(params, context.agent, queries)
    ask = ask_endpoint if params.endpoint else ask_own
    texts = ask(params, inputs, context, closed, queries)
    samples = grade(params, closed, queries, texts)
    rates = pass_rates(samples, params.screen.num_samples)
    write_rows(outputs.samples, samples)
    write_rows(outputs.pass_rates, rates)
    write_json(outputs.metrics, summarise(samples, rates))


def ask_own(
    params: Params, inputs: Inputs, context: Context, closed: Closed, queries: Sequence[Query]
) -> list[list[str]]:
    """Serve the model of the dependency and return its replies, by query and sample.

    Raises:
        UserError: no model, a prompt without room, or no server.
    """
    if inputs.model is None:
        raise UserError("screen needs --model, the screening policy, or --endpoint, who asks one")
    tokenizer = load_tokenizer(resolve_model(inputs.model))
    prompts = [
        prompt_ids(tokenizer, closed.messages[q.query_id], max_model_len=params.serve.max_model_len)
        for q in queries
    ]

    async def work(client: ModelClient) -> list[list[Completion]]:
        return await sample(client, params, closed, queries, prompts)

    completions = with_served_model(
        inputs.model,
        params.serve,
        work,
        log=context.scratch / "vllm.log",
        facts=context.facts,
    )
    return [[completion_text(tokenizer, c) for c in group] for group in completions]


def ask_endpoint(
    params: Params, _inputs: Inputs, context: Context, closed: Closed, queries: Sequence[Query]
) -> list[list[str]]:
    """Ask the endpoint, a chat model, and return its replies, by query and sample.

    Raises:
        UserError: it does not answer, or serves another model.
    """
    assert params.endpoint is not None
    assert context.endpoint is not None
    access = read_endpoint(context.endpoints, context.endpoint)

    async def work(client: ModelClient) -> list[list[str]]:
        return await chat(client, params, closed, queries)

    return with_endpoint(
        context.endpoint,
        params.endpoint,
        work,
        access=access,
        log=context.scratch / "vllm.log",
        facts=context.facts,
    )


async def chat(
    client: ModelClient, params: Params, closed: Closed, queries: Sequence[Query]
) -> list[list[str]]:
    """Ask for each sample by itself, with its own seed: not every server draws several at once."""
    num_samples = params.screen.num_samples

    async def one(query: Query, index: int) -> str:
        return await client.chat(
            [{"role": "user", "content": closed.messages[query.query_id]}],
            max_tokens=closed.max_tokens,
            temperature=params.screen.temperature,
            seed=first_seed(params.screen, query) + index,
        )

    jobs = [bind(one, query, index) for query in queries for index in range(num_samples)]
    concurrency = client.limits.concurrency
    progress = Progress(len(jobs), "samples")
    texts = await run_many(jobs, concurrency=concurrency, progress=progress)
    return [texts[at : at + num_samples] for at in range(0, len(texts), num_samples)]


def closed_questions(params: Params, agent: str, queries: Sequence[Query]) -> Closed:
    """Return how to ask: a base model or an endpoint for the answer alone, an agent's own SFT model in its form.

    An SFT model's calls are not executed: generation ends at the first one, and the sample is wrong.
    """
    if agent not in params.screen.sft_policy_agents:
        messages = {q.query_id: closed_book_message(q.question) for q in queries}
        return Closed(
            messages=messages,
            max_tokens=params.screen.max_answer_tokens,
            stop=(),
            is_tagged=False,
        )
    message = bind(user_message, agent, params.agent, params.prompt.root)
    return Closed(
        messages={q.query_id: message(q.question) for q in queries},
        max_tokens=params.serve.max_response_tokens,
        stop=stop_strings(params.agent),
        is_tagged=True,
    )


async def sample(
    client: ModelClient,
    params: Params,
    closed: Closed,
    queries: Sequence[Query],
    prompts: Sequence[Sequence[int]],
) -> list[list[Completion]]:
    """Draw all samples of each query in one request: they share its prompt."""

    async def one(query: Query, prompt: Sequence[int]) -> list[Completion]:
        room = params.serve.max_model_len - len(prompt)
        sampling = Sampling(
            max_tokens=min(closed.max_tokens, room),
            temperature=params.screen.temperature,
            top_p=1.0,
            seed=first_seed(params.screen, query),
            stop=closed.stop,
            num_samples=params.screen.num_samples,
        )
        return await client.complete(prompt, sampling)

    jobs = [bind(one, query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
    # Twice as many as fit, so that a request waits in the server whenever another ends.
    concurrency = max(1, 2 * params.serve.max_num_seqs // params.screen.num_samples)
    return await run_many(jobs, concurrency=concurrency, progress=Progress(len(jobs), "queries"))


def first_seed(params: ScreenParams, query: Query) -> int:
    """Return the seed of a query's first sample; the server draws sample k with this plus k."""
    return derived_seed(params.seed, "screen", query.query_id) >> 1


def grade(
    params: Params, closed: Closed, queries: Sequence[Query], texts: Sequence[Sequence[str]]
) -> list[ScreenSample]:
    """Grade every sample with the agent's answer reward."""
    reward = closed_book_reward(params.agent.reward)
    samples = []
    for query, group in zip(queries, texts, strict=True):
        for index, text in enumerate(group):
            answer = find_answer(text, closed)
            value = grade_answer(reward, answer, query, params.sandbox)
            samples.append(
                ScreenSample(
                    query_id=query.query_id,
                    sample_index=index,
                    seed=first_seed(params.screen, query) + index,
                    text=text,
                    answer=answer,
                    correct=value == 1.0,
                )
            )
    return samples


def find_answer(text: str, closed: Closed) -> str | None:
    """Return the answer in a reply: all of it, or the last answer tag's body."""
    if not closed.is_tagged:
        return text.strip() or None
    bodies = [element.body.strip() for element in elements(text) if element.tag == "answer"]
    return bodies[-1] if bodies else None


def summarise(samples: Sequence[ScreenSample], rates: Sequence[PassRate]) -> dict[str, float]:
    """Count the samples and summarise the pass rates."""
    above = {
        f"screen/share_above/{threshold:g}": share(
            sum(rate.pass_rate > threshold for rate in rates), len(rates)
        )
        for threshold in THRESHOLDS
    }
    return {
        "screen/queries": len(rates),
        "screen/samples": len(samples),
        "screen/answered_share": share(sum(s.answer is not None for s in samples), len(samples)),
        "screen/pass_rate_mean": mean([rate.pass_rate for rate in rates]),
    } | above


STAGE = Stage(
    name="screen",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent", "scale"),
    optional_axes=("endpoint",),
    environment="serve",
)

if __name__ == "__main__":
    main(STAGE)
