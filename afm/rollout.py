"""The agent loop: a session of a policy, tools and limits give one `Trajectory`.

Teacher, reinforcement learning and evaluation all run through `rollout`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from afm.errors import ModelError, SandboxError, ToolError
from afm.params.agents import AgentParams
from afm.tags import ToolCall, elements, observation_text, parse_steps, pending_call
from afm.tools.base import RolloutContext, Toolbox, ToolResult
from afm.types import (
    Query,
    Segment,
    Step,
    StepKind,
    StopReason,
    ToolFact,
    Trajectory,
    Usage,
    make_trajectory,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What a policy wrote in one go."""

    text: str
    """Stop string included."""
    finish: Literal["stop", "end_of_turn", "length"]
    """Why it stopped: a stop string, its own end of turn, or the token budget."""
    num_tokens: int
    roles: tuple[str | None, ...] = ()
    """Which teacher agent wrote each step of `text`; empty for a model."""


class Session(Protocol):
    """One running response of one policy; owns its token ids."""

    async def act(self, max_tokens: int) -> Action:
        """Continue the response until a stop string, the end of the turn or the budget.

        Raises:
            ModelError: the endpoint failed.
        """
        ...

    def observe(self, text: str) -> int:
        """Append environment text; returns its tokens."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a rollout is cut off."""

    max_tool_calls: int
    """Calls that are executed; the policy may still answer after the last."""
    max_response_tokens: int
    """Policy and observation tokens together. Only the last observation may cross it."""


@dataclass(kw_only=True, slots=True)
class _Run:
    """State of one rollout."""

    session: Session
    toolbox: Toolbox
    tools: Sequence[str]
    limits: Limits
    segments: list[Segment] = field(default_factory=list)
    roles: list[str | None] = field(default_factory=list)
    facts: list[ToolFact] = field(default_factory=list)
    num_tool_calls: int = 0
    policy_tokens: int = 0
    observation_tokens: int = 0

    async def to_the_end(self) -> StopReason:
        while (left := self._tokens_left()) > 0:
            action = await self.session.act(left)
            self._append(action)
            call = pending_call(action.text, self.tools)
            reason = _ending(action, call)
            if reason is not None:
                return reason
            if self._tokens_left() <= 0:
                return StopReason.MAX_TOKENS
            if self.num_tool_calls >= self.limits.max_tool_calls:
                return StopReason.MAX_TOOL_CALLS
            assert call is not None
            await self._execute(call, after=action.text)
        return StopReason.MAX_TOKENS

    def _tokens_left(self) -> int:
        used = self.policy_tokens + self.observation_tokens
        return self.limits.max_response_tokens - used

    def _append(self, action: Action) -> None:
        self.policy_tokens += action.num_tokens
        if not action.text:
            return
        segment = Segment(text=action.text, author="policy")
        self.segments.append(segment)
        num_steps = len(parse_steps([segment], self.tools))
        assert len(action.roles) in (0, num_steps), (action.roles, action.text)
        self.roles.extend(action.roles or (None,) * num_steps)

    async def _execute(self, call: ToolCall, *, after: str) -> None:
        result = await self._answer(call)
        self.num_tool_calls += 1
        text = observation_text(result.text, after=after)
        self.observation_tokens += self.session.observe(text)
        self.segments.append(Segment(text=text, author="environment"))

    async def _answer(self, call: ToolCall) -> ToolResult:
        """Call the tool and note how that ended."""
        try:
            result = await self.toolbox.call(call.tool, call.argument)
        except (ToolError, SandboxError) as error:
            kind = error.kind if isinstance(error, ToolError) else "sandbox"
            self.facts.append(ToolFact(tool=call.tool, status="error", error_kind=kind))
            raise
        self.facts.append(
            ToolFact(tool=call.tool, status=result.status, metadata=dict(result.metadata))
        )
        return result

    def steps(self) -> tuple[Step, ...]:
        roles = iter(self.roles)
        return tuple(
            step
            if step.kind is StepKind.OBSERVATION
            else step.model_copy(update={"role": next(roles)})
            for step in parse_steps(self.segments, self.tools)
        )

    def usage(self, prompt_tokens: int) -> Usage:
        return Usage(
            prompt_tokens=prompt_tokens,
            policy_tokens=self.policy_tokens,
            observation_tokens=self.observation_tokens,
        )


def _ending(action: Action, call: ToolCall | None) -> StopReason | None:
    """Why the rollout ends after this action, or None when a call waits to be executed."""
    if any(element.tag == "answer" for element in elements(action.text)):
        return StopReason.ANSWERED
    if action.finish == "length":
        return StopReason.MAX_TOKENS
    if action.finish == "end_of_turn":
        return StopReason.END_OF_TURN
    return None if call is not None else StopReason.INVALID_CALL


async def rollout(
    session: Session,
    query: Query,
    *,
    agent: str,
    agent_params: AgentParams,
    toolbox: Toolbox,
    limits: Limits,
    policy: str,
    sample_index: int,
    seed: int,
    prompt_tokens: int,
) -> Trajectory:
    """Let a policy answer a query with tools.

    Failures of tools, sandbox and endpoint give `StopReason.FAILED` with the text up to there; no others are caught.

    Raises:
        UserError: the toolbox lacks a tool of the agent.
    """
    scope = f"{agent}/{policy}/{query.query_id}/{sample_index}/{seed}"
    own = toolbox.for_rollout(RolloutContext(scope=scope, question=query.question))
    run = _Run(session=session, toolbox=own, tools=agent_params.tools, limits=limits)
    stop_reason, error = await _finish(run)
    return make_trajectory(
        query_id=query.query_id,
        agent=agent,
        question=query.question,
        answers=query.answers,
        policy=policy,
        sample_index=sample_index,
        seed=seed,
        segments=tuple(run.segments),
        steps=run.steps(),
        stop_reason=stop_reason,
        num_tool_calls=run.num_tool_calls,
        usage=run.usage(prompt_tokens),
        tool_facts=tuple(run.facts),
        error=error,
    )


async def _finish(run: _Run) -> tuple[StopReason, str | None]:
    """Return why the rollout ended, and what failed if something did."""
    try:
        return await run.to_the_end(), None
    except (ToolError, SandboxError, ModelError) as failure:
        return StopReason.FAILED, f"{type(failure).__name__}: {failure}"
