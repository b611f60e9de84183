"""Small made-up queries and trajectories for the tests of filters, rewards and scores."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from afm.params.agents import AgentParams
from afm.params.judge import AskingParams
from afm.params.reading import cut, parse_section, read_tree
from afm.params.tools import SandboxParams
from afm.tags import observation_text, parse_steps
from afm.types import (
    CodeTest,
    Query,
    Segment,
    StopReason,
    Trajectory,
    Usage,
    make_query,
    make_trajectory,
)

ROOT = Path(__file__).parents[2]

SANDBOX = SandboxParams(
    wall_s=5.0,
    cpu_s=4,
    memory_mib=1024,
    max_output_bytes=65536,
    max_file_bytes=1048576,
    max_processes=32,
    scratch_mib=16,
    max_files=1024,
    unsafe=False,
)


@lru_cache(maxsize=1)
def _params_tree() -> dict[str, Any]:
    return read_tree(ROOT / "params.yaml")


def params_tree() -> dict[str, Any]:
    """Return a copy of params.yaml that a test may change."""
    return copy.deepcopy(_params_tree())


@lru_cache
def asking_params() -> AskingParams:
    """Read `judge.asking` of params.yaml."""
    return parse_section(
        cut(_params_tree(), "judge.asking", where="params"), AskingParams, where="params"
    )


@lru_cache
def agent_params(agent: str) -> AgentParams:
    """Read an agent's block of params.yaml."""
    block = cut(_params_tree(), f"agents.{agent}", where="params")
    return parse_section(block, AgentParams, where="params")


def query(
    question: str = "Where was the author of B born?",
    answers: Sequence[str] = ("Oslo",),
    *,
    agent: str = "mhqa",
    split: str = "sft",
    hops: int = 2,
    tests: Sequence[CodeTest] = (),
    entry_point: str | None = None,
    **more: Any,
) -> Query:
    """Make a query."""
    return make_query(
        agent=agent,
        question=question,
        answers=tuple(answers),
        source="synthetic",
        split=split,
        hops=hops,
        phrasing="p0",
        entities=tuple(answers),
        tests=tuple(tests),
        entry_point=entry_point,
        **more,
    )


def segments(parts: Sequence[str]) -> tuple[Segment, ...]:
    """Turn parts into segments; a part that starts with `obs:` is an observation."""
    return tuple(
        Segment(text=observation_text(part.removeprefix("obs:")), author="environment")
        if part.startswith("obs:")
        else Segment(text=part, author="policy")
        for part in parts
    )


def trajectory(
    asked: Query,
    parts: Sequence[str],
    *,
    tools: Sequence[str] = ("wiki_search",),
    stop_reason: StopReason = StopReason.ANSWERED,
    policy: str = "teacher:scripted",
    sample_index: int = 0,
    policy_tokens: int = 100,
    **fields: Any,
) -> Trajectory:
    """Make a trajectory from parts."""
    own = segments(parts)
    return make_trajectory(
        query_id=asked.query_id,
        agent=asked.agent,
        question=asked.question,
        answers=asked.answers,
        policy=policy,
        sample_index=sample_index,
        seed=7,
        segments=own,
        steps=parse_steps(own, tools),
        stop_reason=stop_reason,
        num_tool_calls=sum(segment.author == "environment" for segment in own),
        usage=Usage(prompt_tokens=20, policy_tokens=policy_tokens, observation_tokens=50),
        **fields,
    )


def search(argument: str) -> str:
    """Think and search."""
    return f"<think>Look it up.</think>\n<wiki_search>\n{argument}\n</wiki_search>"


PLAN = "<think>Two hops.</think><plan>1. author. 2. birthplace.</plan>"
REFLECTION = "<think>Assess.</think><reflection>Conflict: good.</reflection>"


def check(score: int) -> str:
    """Think and double-check."""
    return f"<think>Check.</think><double_check>It fits. Score: {score}</double_check>"


def suggest(answer: str) -> str:
    """Think and suggest."""
    return f"<think>Enough.</think><suggested_answer>{answer}</suggested_answer>"


def answer(text: str) -> str:
    """Think and answer."""
    return f"<think>Done.</think><answer>{text}</answer>"


def good_parts(final: str = "Oslo") -> list[str]:
    """Return a faultless trajectory of the double_check grammar: 7 hops, 2 calls."""
    return [
        PLAN + search("author of B"),
        "obs:B was written by C.",
        search("birthplace of C"),
        "obs:C was born in Oslo.",
        REFLECTION + suggest(final) + check(4) + answer(final),
    ]
