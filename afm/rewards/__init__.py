"""Rewards: one set for filtering, screening, reinforcement and scoring.

A reward judges the final answer that the policy wrote, never one that stands in an observation.
"""

from collections.abc import Callable
from dataclasses import dataclass

from afm.errors import JudgeError, UserError
from afm.params.tools import SandboxParams
from afm.rewards import code_tests, exact_match, math
from afm.rewards.format import grade_code_calls, is_well_formed, policy_text
from afm.rewards.overlong import overlong_penalty
from afm.rewards.reward import Reward
from afm.types import Query, StopReason, Trajectory

__all__ = [
    "REWARDS",
    "Reward",
    "Rule",
    "grade_answer",
    "is_well_formed",
    "overlong_penalty",
    "score_trajectory",
    "validate",
]

Grader = Callable[[str, Query, SandboxParams], float]
"""Final answer to 0 or 1; raises JudgeError where there is no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How one reward is made."""

    answer: Grader
    trial: Grader | None = None
    """How a gold answer is tried, where that is more, or faster, than grading it."""
    format: Callable[[str], float] | None = None
    """Factor from what the policy wrote; None where format earns nothing (paper: web and QA)."""


def _every_part(answer: str, query: Query, _sandbox: SandboxParams) -> float:
    return exact_match.grade_every_part(answer, query.answers)


def _first_part(answer: str, query: Query, _sandbox: SandboxParams) -> float:
    return exact_match.grade_first_part(answer, query.answers)


def _math(answer: str, query: Query, _sandbox: SandboxParams) -> float:
    return float(any(math.grade(answer, gold) for gold in query.answers))


def _tests_or_math(answer: str, query: Query, sandbox: SandboxParams) -> float:
    return (code_tests.grade if query.tests else _math)(answer, query, sandbox)


def _try_math(gold: str, _query: Query, _sandbox: SandboxParams) -> float:
    return math.check(gold)


def _try_tests_or_math(gold: str, query: Query, sandbox: SandboxParams) -> float:
    return (code_tests.check if query.tests else _try_math)(gold, query, sandbox)


REWARDS: dict[str, Rule] = {
    "exact_match": Rule(answer=_every_part),
    "exact_match_first": Rule(answer=_first_part),
    "math": Rule(answer=_math, trial=_try_math),
    "code_tests": Rule(answer=code_tests.grade, trial=code_tests.check),
    "answer_times_format": Rule(
        answer=_tests_or_math, trial=_try_tests_or_math, format=grade_code_calls
    ),
}
"""By the name in `agents.<agent>.reward`. `exact_match` is the official training rule, `_first` its evaluation rule."""


def score_trajectory(
    reward_name: str,
    trajectory: Trajectory,
    query: Query,
    sandbox_params: SandboxParams,
) -> Reward:
    """Score a finished rollout; no answer scores 0.

    Raises:
        JudgeError: the rollout FAILED, so it is no evidence about the policy, or the judge gave no verdict.
        UserError: unknown reward.
    """
    if trajectory.stop_reason is StopReason.FAILED:
        raise JudgeError(
            f"trajectory {trajectory.trajectory_id} failed ({trajectory.error}): never a score"
        )
    assert trajectory.query_id == query.query_id, (trajectory.query_id, query.query_id)
    breakdown = {"answer": grade_answer(reward_name, trajectory.answer, query, sandbox_params)}
    value = breakdown["answer"]
    format_rule = _rule(reward_name).format
    if format_rule is not None:
        breakdown["format"] = format_rule(policy_text(trajectory))
        value *= breakdown["format"]
    return Reward(value=value, breakdown=breakdown)


def grade_answer(
    reward_name: str, answer: str | None, query: Query, sandbox_params: SandboxParams
) -> float:
    """Grade a final answer alone, without format; None scores 0.

    Raises:
        JudgeError: no verdict.
        UserError: unknown reward.
    """
    grader = _rule(reward_name).answer
    return grader(answer, query, sandbox_params) if answer is not None else 0.0


def validate(
    reward_name: str,
    query: Query,
    sandbox_params: SandboxParams,
    golds: tuple[str, ...] = (),
) -> None:
    """Check that a reward accepts the query's own gold answers; what it refuses no policy could solve.

    Args:
        reward_name: Key of `REWARDS`.
        query: The query; its `answers` are the golds.
        sandbox_params: Limits of programs.
        golds: Gold answers in the agent's own answer form, where they are not in `answers` (programs).

    Raises:
        UserError: a gold is refused, there is none to try, or the reward is unknown.
        JudgeError: no verdict.
    """
    rule = _rule(reward_name)
    tried = golds or query.answers
    where = f"query {query.query_id} ({query.source})"
    if not tried:
        raise UserError(f"{where} has no gold answer to validate")
    grade = rule.trial or rule.answer
    refused = [gold for gold in tried if grade(gold, query, sandbox_params) != 1.0]
    if refused:
        raise UserError(f"{where}: reward {reward_name!r} refuses its own gold {refused}")


def _rule(reward_name: str) -> Rule:
    if reward_name not in REWARDS:
        raise UserError(f"unknown reward {reward_name!r}: REWARDS has {sorted(REWARDS)}")
    return REWARDS[reward_name]
