"""What solving costs: policy tokens and tool calls per solved query (paper, figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from afm.averages import mean, share


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Outcome and cost of one scored rollout."""

    solved: bool
    policy_tokens: int
    """Tokens that the policy wrote [tokens]."""
    tool_calls: int
    """Tool calls [calls]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Costs of many rollouts; NaN where undefined."""

    policy_tokens_mean: float
    tool_calls_mean: float
    tokens_per_solved: float
    """Policy tokens of all rollouts, failed attempts included, over the number that solved."""
    tool_calls_per_solved: float


def efficiency(costs: Sequence[Cost]) -> Efficiency:
    """Summarise costs. Attempts that did not solve are paid for as well."""
    solved = sum(cost.solved for cost in costs)
    return Efficiency(
        policy_tokens_mean=mean([cost.policy_tokens for cost in costs]),
        tool_calls_mean=mean([cost.tool_calls for cost in costs]),
        tokens_per_solved=share(sum(cost.policy_tokens for cost in costs), solved),
        tool_calls_per_solved=share(sum(cost.tool_calls for cost in costs), solved),
    )
