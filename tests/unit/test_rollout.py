"""The agent loop: stop reasons, limits, failures, order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from afm.errors import ModelError, SandboxError, ToolError
from afm.jobs import run_many
from afm.params.agents import AgentParams
from afm.rollout import Action, Limits, rollout
from afm.tools.base import RolloutContext, ToolResult
from afm.types import Query, StopReason, Trajectory, make_query

CALL = "<think>s</think>\n<wiki_search>\nq{}\n</wiki_search>"
ANSWER = "<think>d</think><answer>Paris</answer>"
PARAMS = AgentParams(
    grammar="six_functions",
    tools=("wiki_search",),
    max_tool_calls=3,
    top_k=1,
    max_observation_chars=100,
    tool_timeout_s=5.0,
    reward="exact_match",
)


def a_query() -> Query:
    return make_query(
        agent="mhqa",
        question="Capital of France?",
        answers=("Paris",),
        source="test",
        split="sft",
        hops=1,
        phrasing="a",
        entities=("France",),
    )


class Puppet:
    """Says given texts; each character is a token."""

    def __init__(self, *actions: str | Action | Exception) -> None:
        self.actions = list(actions)
        self.seen: list[str] = []
        self.budgets: list[int] = []

    async def act(self, max_tokens: int) -> Action:
        self.budgets.append(max_tokens)
        action = self.actions.pop(0)
        if isinstance(action, Exception):
            raise action
        if isinstance(action, Action):
            return action
        return Action(text=action, finish="stop", num_tokens=len(action))

    def observe(self, text: str) -> int:
        self.seen.append(text)
        return len(text)


class Tools:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[tuple[str, str]] = []

    def for_rollout(self, _about: RolloutContext) -> "Tools":
        return self

    async def call(self, tool: str, argument: str) -> ToolResult:
        self.calls.append((tool, argument))
        if self.error is not None:
            raise self.error
        return ToolResult(text=f"seen {argument}", status="ok")


def run(
    puppet: Puppet, tools: Tools | None = None, *, max_tokens: int = 10_000, **changes: Any
) -> Trajectory:
    return asyncio.run(
        rollout(
            puppet,
            a_query(),
            agent="mhqa",
            agent_params=PARAMS,
            toolbox=tools or Tools(),
            limits=Limits(max_tool_calls=3, max_response_tokens=max_tokens),
            policy="test",
            sample_index=0,
            seed=1,
            prompt_tokens=7,
            **changes,
        )
    )


def calls(count: int) -> Sequence[str]:
    return [CALL.format(number) for number in range(count)]


def test_an_answer_after_calls() -> None:
    puppet = Puppet(*calls(2), ANSWER)
    trajectory = run(puppet)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.answer == "Paris"
    assert trajectory.num_tool_calls == 2
    assert [segment.author for segment in trajectory.segments] == [
        "policy",
        "environment",
        "policy",
        "environment",
        "policy",
    ]
    assert puppet.seen[0] == "\n\n<observation>\nseen q0\n</observation>\n\n"
    spoken = sum(len(s.text) for s in trajectory.segments if s.author == "policy")
    shown = sum(len(s.text) for s in trajectory.segments if s.author == "environment")
    usage = trajectory.usage
    assert (usage.prompt_tokens, usage.policy_tokens, usage.observation_tokens) == (
        7,
        spoken,
        shown,
    )
    assert puppet.budgets[1] == 10_000 - len(CALL.format(0)) - len(puppet.seen[0])


def test_the_policy_may_answer_after_the_last_call() -> None:
    tools = Tools()
    trajectory = run(Puppet(*calls(3), ANSWER), tools)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert len(tools.calls) == trajectory.num_tool_calls == 3


def test_one_call_too_many_is_not_executed() -> None:
    tools = Tools()
    trajectory = run(Puppet(*calls(4)), tools)
    assert trajectory.stop_reason is StopReason.MAX_TOOL_CALLS
    assert tools.calls == [("wiki_search", f"q{number}") for number in range(3)]
    assert trajectory.segments[-1].author == "policy"


def test_repeated_calls_are_executed() -> None:
    tools = Tools()
    run(Puppet(CALL, CALL, ANSWER), tools)
    assert len(tools.calls) == 2


def cut(text: str, finish: Any) -> Action:
    return Action(text=text, finish=finish, num_tokens=len(text))


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (cut("<think>hm", "length"), StopReason.MAX_TOKENS),
        (cut(CALL, "length"), StopReason.MAX_TOKENS),
        (cut("<answer>Paris</answer> and", "length"), StopReason.ANSWERED),
        (cut("I do not know.", "end_of_turn"), StopReason.END_OF_TURN),
        (cut("", "end_of_turn"), StopReason.END_OF_TURN),
        (cut("<answer>Paris</answer>", "end_of_turn"), StopReason.ANSWERED),
        (cut("<wiki_search>\n\n</wiki_search>", "stop"), StopReason.INVALID_CALL),
        (cut("<code>print(1)</code>", "stop"), StopReason.INVALID_CALL),
        (cut("<think>no <wiki_search>x</wiki_search></think>", "stop"), StopReason.INVALID_CALL),
        (cut("</answer>", "stop"), StopReason.INVALID_CALL),
    ],
)
def test_endings(action: Action, reason: StopReason) -> None:
    tools = Tools()
    assert run(Puppet(action), tools).stop_reason is reason
    assert tools.calls == []


def test_the_token_budget_counts_observations() -> None:
    first = CALL.format(0)
    trajectory = run(Puppet(first, ANSWER), max_tokens=len(first) + 5)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert trajectory.num_tool_calls == 1
    tools = Tools()
    trajectory = run(Puppet(first), tools, max_tokens=len(first))
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert tools.calls == []


@pytest.mark.parametrize("error", [ToolError("down"), SandboxError("down")])
def test_a_failed_tool_fails_the_rollout(error: Exception) -> None:
    trajectory = run(Puppet(CALL), Tools(error))
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.error == f"{type(error).__name__}: down"
    assert trajectory.num_tool_calls == 0
    assert trajectory.response == CALL


def test_a_failed_endpoint_fails_the_rollout() -> None:
    trajectory = run(Puppet(CALL, ModelError("no reply")))
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.error == "ModelError: no reply"
    assert trajectory.num_tool_calls == 1


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        run(Puppet(CALL), Tools(ZeroDivisionError()))


def test_line_breaks_after_a_call_are_not_doubled() -> None:
    written = Action(text=f"{CALL}\n\n", finish="stop", num_tokens=9)
    trajectory = run(Puppet(written, ANSWER))
    assert "</wiki_search>\n\n<observation>" in trajectory.response


def test_roles_go_to_the_steps_that_were_spoken() -> None:
    first = Action(text=CALL, finish="stop", num_tokens=1, roles=("planner", "searcher"))
    second = Action(text=ANSWER, finish="stop", num_tokens=1, roles=("critic", "verifier"))
    steps = run(Puppet(first, second)).steps
    assert [step.role for step in steps] == ["planner", "searcher", None, "critic", "verifier"]


def test_run_many_keeps_order_and_bounds_concurrency() -> None:
    running, most = 0, 0

    async def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - number % 5))
        running -= 1
        return number

    jobs = [lambda number=number: job(number) for number in range(20)]
    assert asyncio.run(run_many(jobs, concurrency=4)) == list(range(20))
    assert most == 4
    assert asyncio.run(run_many([], concurrency=4)) == []


def test_run_many_stops_at_the_first_error() -> None:
    started: list[int] = []

    async def job(number: int) -> None:
        started.append(number)
        await asyncio.sleep(0.01)
        if number == 1:
            raise ToolError("broken")

    jobs = [lambda number=number: job(number) for number in range(50)]
    with pytest.raises(ToolError, match="broken"):
        asyncio.run(run_many(jobs, concurrency=2))
    assert len(started) <= 4
