"""Letting a teacher demonstrate a set of queries."""

import asyncio
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.agents import user_message
from afm.errors import UserError
from afm.ids import derived_seed
from afm.jobs import run_many
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.rollout import TeacherParams
from afm.params.tools import SandboxParams
from afm.progress import Progress
from afm.rollout import Limits, rollout
from afm.teachers import Teacher, open_teacher
from afm.teachers.pieces import count_pieces
from afm.teachers.script import MISTAKES
from afm.tools.assembly import assemble_toolbox
from afm.tools.base import Toolbox
from afm.tools.facts import count_calls
from afm.types import Query, StopReason, Trajectory

Metrics = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """A trajectory and what its text does not tell."""

    trajectory: Trajectory
    mistake: str | None
    """Seeded mistake that the teacher was told to make."""

    @property
    def has_failed(self) -> bool:
        """Whether a tool, the sandbox or the endpoint failed."""
        return self.trajectory.stop_reason is StopReason.FAILED


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything about demonstrations but the queries."""

    agent: str
    agent_params: AgentParams
    teacher: TeacherParams
    tools: ToolsParams
    sandbox: SandboxParams
    index: Path
    cell: str
    """Stage cell, for instance `rollout@web`."""
    num_samples: int
    """Demonstrations per query."""
    seed: int
    concurrency: int
    """Demonstrations in flight."""


def demonstrate(setting: Setting, queries: Sequence[Query]) -> list[Demonstration]:
    """Run the teacher on queries; the order is that of the queries, then of the samples.

    Raises:
        UserError: unknown tool, no index, or a query that the teacher cannot do.
        SandboxError: the code tool's sandbox does not isolate on this machine.
    """
    teacher = open_teacher(setting.teacher, setting.agent_params, queries)
    toolbox = assemble_toolbox(
        setting.agent_params, setting.sandbox, setting.tools, setting.index, cell=setting.cell
    )
    jobs = [
        functools.partial(_one, setting, teacher, toolbox, query, sample_index)
        for query in queries
        for sample_index in range(setting.num_samples)
    ]
    progress = Progress(len(jobs), "rollouts")
    return asyncio.run(run_many(jobs, concurrency=setting.concurrency, progress=progress))


async def _one(
    setting: Setting, teacher: Teacher, toolbox: Toolbox, query: Query, sample_index: int
) -> Demonstration:
    seed = derived_seed(setting.seed, query.query_id, sample_index)
    session = teacher.session(query, seed)
    message = user_message(setting.agent, setting.agent_params, "short", query.question)
    trajectory = await rollout(
        session,
        query,
        agent=setting.agent,
        agent_params=setting.agent_params,
        toolbox=session.toolbox or toolbox,
        limits=Limits(
            max_tool_calls=setting.agent_params.max_tool_calls,
            max_response_tokens=setting.teacher.max_response_tokens,
        ),
        policy=f"teacher:{setting.teacher.name}",
        sample_index=sample_index,
        seed=seed,
        prompt_tokens=count_pieces(message),
    )
    return Demonstration(trajectory=trajectory, mistake=session.mistake)


def require_few_failures(
    done: Sequence[Demonstration], max_share: float, *, knob: str, log: Path
) -> None:
    """Stop when too many demonstrations failed.

    Raises:
        UserError: the share is above `max_share`; the message counts and quotes the errors.
    """
    failed = [demonstration for demonstration in done if demonstration.has_failed]
    if len(failed) <= max_share * len(done):
        return
    (error, times), *_ = Counter(d.trajectory.error for d in failed).most_common(1)
    raise UserError(
        f"{len(failed)} of {len(done)} rollouts failed, more than {knob} = {max_share} allows; "
        f"most often ({times} times): {error}; mend the tool, all failures are in {log}"
    )


def measure(done: Sequence[Demonstration], *, prefix: str) -> Metrics:
    """Return counts, and means over the demonstrations that did not fail (NaN without any).

    `success_share` is the share that ended with an answer; whether it is right, filter says.
    """
    finished = [d.trajectory for d in done if not d.has_failed]
    counts = Counter(d.mistake for d in done)
    answered = sum(t.stop_reason is StopReason.ANSWERED for t in finished)
    return {
        f"{prefix}/rollouts": len(done),
        f"{prefix}/failed": len(done) - len(finished),
        f"{prefix}/success_share": answered / len(done) if done else float("nan"),
        f"{prefix}/tool_calls_mean": _mean([t.num_tool_calls for t in finished]),
        f"{prefix}/policy_tokens_mean": _mean([t.usage.policy_tokens for t in finished]),
        f"{prefix}/observation_tokens_mean": _mean([t.usage.observation_tokens for t in finished]),
        **count_calls((d.trajectory for d in done), prefix=prefix),
        **{f"{prefix}/mistakes/{name}": counts[name] for name in MISTAKES},
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
