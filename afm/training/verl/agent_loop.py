"""verl's agent loop: the project's own rollout over verl's server manager. One class, registered once per agent."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from afm.agents import stop_strings, user_message
from afm.chat import ModelClient
from afm.endpoint import Endpoint
from afm.endpoint_client import limits_of
from afm.errors import JudgeError, SandboxError
from afm.ids import derived_seed
from afm.jsonl import read_json
from afm.params.agents import AgentParams
from afm.rewards import REWARDS, Judge, score_trajectory
from afm.rewards.llm_judge import CACHE, LlmJudge, VerdictCache, judge_each, pair_of
from afm.rollout import Limits, rollout
from afm.sessions import prompt_ids
from afm.tools.assembly import assemble_toolbox
from afm.tools.base import Toolbox
from afm.training.verl.journal import FAILED, UNJUDGED, append_row
from afm.training.verl.reward import Scored, extra_info, shape
from afm.training.verl.run import DapoRun, current_run
from afm.training.verl.session import ServerSession
from afm.types import Query, StopReason, Trajectory


@cache
def _toolbox(agent: str) -> Toolbox:
    run = current_run()
    index = run.index_of(agent)
    return assemble_toolbox(
        run.agents[agent],  # type: ignore[index]
        run.sandbox,
        run.tools,
        index if index.exists() else None,
        cell=f"dapo@{run.agent}-{run.scale}",
    )


@cache
def _judge() -> LlmJudge | None:
    """Return the run's judge: one client per process, whose limits hold for all of its rollouts together."""
    run = current_run()
    seat = run.judge
    if seat is None:
        return None
    endpoint = Endpoint(
        base_url=seat.base_url, model=seat.model.name, api_key_variable=seat.api_key_variable
    )
    client = ModelClient(endpoint, limits_of(seat.access))
    cache = VerdictCache(run.scratch / CACHE)
    return LlmJudge(client=client, model=seat.model, asking=seat.asking, cache=cache)


@cache
def end_ids(model: Path, eos: int) -> frozenset[int]:
    """Return the tokens that end a turn: the tokenizer's, and those of the generation config."""
    config = model / "generation_config.json"
    declared = read_json(config).get("eos_token_id") if config.exists() else None
    more = declared if isinstance(declared, list) else [declared]
    return frozenset({eos, *(token for token in more if token is not None)})


class PolicyLoop(AgentLoopBase):  # type: ignore[misc]
    """Rolls one query out and rewards it.

    A failed or unjudged rollout returns no output at all: verl then has one sample fewer in the group, so that the
    failure moves neither its mean nor its deviation. A masked row would still move both (miles#2802).
    """

    def __init__(self, *args: Any, agent: str, **kwargs: Any) -> None:
        """Args: agent: Name of the project's agent; the rest is verl's."""
        super().__init__(*args, **kwargs)
        self.agent = agent
        self.run_settings = current_run()

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Roll out one sample of one row; see `AgentLoopBase.run`."""
        query = Query.model_validate_json(row["query"])
        step, sample_index = int(row["global_steps"]), int(row["session_id"])
        seed = derived_seed(self.run_settings.dapo.seed, "rollout", step, row["uid"], sample_index)
        session = self._session(query, sampling_params, seed, f"{row['uid']}-{sample_index}")
        trajectory = await self._roll_out(session, query, step, sample_index, seed)
        verdict = await self._verdict(trajectory, query)
        scored = await asyncio.to_thread(self._score, trajectory, query, step, row["uid"], verdict)
        if scored is None:
            return []
        return _output(session, trajectory, scored, step)

    def _session(
        self, query: Query, sampling_params: dict[str, Any], seed: int, request_id: str
    ) -> ServerSession:
        run = self.run_settings
        text = user_message(self.agent, self._params, run.prompt, query.question)  # type: ignore[arg-type]
        prompt = prompt_ids(self.tokenizer, text, max_model_len=run.serve.max_model_len)
        return ServerSession(
            server=self.server_manager,
            tokenizer=self.tokenizer,
            request_id=request_id,
            prompt_ids=prompt,
            stops=stop_strings(self._params),
            end_ids=end_ids(run.model, self.tokenizer.eos_token_id),
            sampling={key: sampling_params[key] for key in ("temperature", "top_p")},
            seed=seed,
        )

    @property
    def _params(self) -> AgentParams:
        return self.run_settings.agents[self.agent]  # type: ignore[index]

    async def _roll_out(
        self, session: ServerSession, query: Query, step: int, sample_index: int, seed: int
    ) -> Trajectory:
        return await rollout(
            session,
            query,
            agent=self.agent,
            agent_params=self._params,
            toolbox=_toolbox(self.agent),
            limits=Limits(
                max_tool_calls=self._params.max_tool_calls,
                max_response_tokens=self.run_settings.response_tokens(step),
            ),
            policy="rl",
            sample_index=sample_index,
            seed=seed,
            prompt_tokens=len(session.prompt_ids),
        )

    async def _verdict(self, trajectory: Trajectory, query: Query) -> Judge | None:
        """Ask the judge about an answer; None where the reward asks none."""
        judge = _judge() if REWARDS[self._params.reward].is_judged else None
        if judge is None:
            return None
        answer = trajectory.answer
        pairs = [] if answer is None or is_failed(trajectory) else [pair_of(answer, query)]
        return (await judge_each(judge, pairs)).grade

    def _score(
        self, trajectory: Trajectory, query: Query, step: int, uid: str, verdict: Judge | None
    ) -> Scored | None:
        """Reward a trajectory, or record why there is no reward."""
        if is_failed(trajectory):
            self._record(trajectory, step, uid, FAILED, str(trajectory.error))
            return None
        try:
            reward = score_trajectory(
                self._params.reward, trajectory, query, self.run_settings.sandbox, verdict
            )
        except JudgeError as error:
            self._record(trajectory, step, uid, UNJUDGED, f"JudgeError: {error}")
            return None
        except SandboxError as error:
            self._record(trajectory, step, uid, FAILED, f"SandboxError: {error}")
            return None
        budget = self.run_settings.response_tokens(step)
        tokens = trajectory.usage.policy_tokens
        return shape(reward, tokens, budget=budget, dapo=self.run_settings.dapo)

    def _record(self, trajectory: Trajectory, step: int, uid: str, kind: str, error: str) -> None:
        row = {
            "step": step,
            "query_id": trajectory.query_id,
            "agent": self.agent,
            "error": error,
            "tool_facts": [fact.model_dump(mode="json") for fact in trajectory.tool_facts],
            "uid": uid,
            "kind": kind,
        }
        append_row(self.run_settings.failures, row)


def is_failed(trajectory: Trajectory) -> bool:
    """Tell whether a rollout is no evidence about the policy."""
    return trajectory.stop_reason is StopReason.FAILED


def _output(
    session: ServerSession, trajectory: Trajectory, scored: Scored, step: int
) -> AgentLoopOutput:
    length = session.policy_length()
    extra = {"turn_scores": [], "tool_rewards": [], **session.extra}
    # Rollouts of step n sample from the weights of step n - 1; a server over HTTP does not say so itself.
    for key in ("min_global_steps", "max_global_steps"):
        extra[key] = session.extra.get(key) if session.extra.get(key) is not None else step - 1
    extra["reward_extra_info"] = extra_info(
        trajectory, scored, logprob=sum(session.rollout_logprobs)
    )
    return AgentLoopOutput(
        prompt_ids=session.prompt_ids,
        response_ids=session.ids[:length],
        response_mask=session.response_mask[:length],
        response_logprobs=session.rollout_logprobs[:length],
        reward_score=scored.reward,
        num_turns=2 * session.turns,
        metrics=AgentLoopMetrics(),
        extra_fields=extra,
    )


def loop_config(run: DapoRun) -> list[dict[str, str]]:
    """Return the registry that verl reads from a YAML file: one entry per agent."""
    target = f"{PolicyLoop.__module__}.{PolicyLoop.__qualname__}"
    return [{"name": agent, "_target_": target, "agent": agent} for agent in run.agents]
