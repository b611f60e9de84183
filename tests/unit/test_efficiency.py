"""Costs per solved query."""

import math

from afm.efficiency import Cost, efficiency


def test_unsolved_attempts_are_paid_for():
    costs = [
        Cost(solved=True, policy_tokens=100, tool_calls=2),
        Cost(solved=False, policy_tokens=300, tool_calls=4),
        Cost(solved=True, policy_tokens=200, tool_calls=3),
    ]
    result = efficiency(costs)
    assert result.policy_tokens_mean == 200
    assert result.tool_calls_mean == 3
    assert result.tokens_per_solved == 300
    assert result.tool_calls_per_solved == 4.5


def test_nothing_solved_is_undefined():
    result = efficiency([Cost(solved=False, policy_tokens=5, tool_calls=0)])
    assert math.isnan(result.tokens_per_solved)
    assert math.isnan(result.tool_calls_per_solved)
    assert result.policy_tokens_mean == 5
    assert math.isnan(efficiency([]).policy_tokens_mean)
