"""From a finished trajectory to verl's reward: the agent's own reward, and the soft penalty on long responses."""

from dataclasses import dataclass

from afm.params.scales import DapoParams
from afm.rewards.overlong import overlong_penalty
from afm.rewards.reward import Reward
from afm.training.verl.groups import Sample
from afm.types import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Reward of one rollout."""

    reward: float
    """What the advantage is computed from: `acc` plus the overlong penalty."""
    acc: float
    """The agent's reward, unshaped; what dynamic sampling compares."""
    parts: dict[str, float]


def shape(reward: Reward, policy_tokens: int, *, budget: int, dapo: DapoParams) -> Scored:
    """Add the overlong penalty to an agent's reward.

    verl's own overlong buffer counts observations too, which would punish a policy for what its tools returned.

    Args:
        reward: The agent's reward.
        policy_tokens: Tokens that the policy wrote.
        budget: Response budget of the step [tokens].
        dapo: Share and size of the penalty.
    """
    penalty = overlong_penalty(
        policy_tokens,
        max_response_tokens=budget,
        overlong_share=dapo.overlong_share,
        penalty=dapo.overlong_penalty,
    )
    parts = {**reward.breakdown, "overlong": penalty}
    return Scored(reward=reward.value + penalty, acc=reward.value, parts=parts)


def extra_info(
    trajectory: Trajectory, scored: Scored, *, logprob: float
) -> dict[str, float | int | str]:
    """Return what travels beside the reward: `acc` for dynamic sampling, counts for the metrics, the parts."""
    return {
        "acc": scored.acc,
        "reward": scored.reward,
        "agent": trajectory.agent,
        "query_id": trajectory.query_id,
        "policy_tokens": trajectory.usage.policy_tokens,
        "observation_tokens": trajectory.usage.observation_tokens,
        "tool_calls": trajectory.num_tool_calls,
        "logprob": logprob,
        **{f"part/{name}": value for name, value in sorted(scored.parts.items())},
    }


def sample_of(info: dict[str, float | int | str]) -> Sample:
    """Read `extra_info` back."""
    return Sample(
        agent=str(info["agent"]),
        query_id=str(info["query_id"]),
        acc=float(info["acc"]),
        reward=float(info["reward"]),
        policy_tokens=int(info["policy_tokens"]),
        observation_tokens=int(info["observation_tokens"]),
        tool_calls=int(info["tool_calls"]),
        logprob=float(info["logprob"]),
    )
