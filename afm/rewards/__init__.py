"""Rewards: one set for filtering, screening, reinforcement and scoring.

A reward judges the final answer that the policy wrote, never one that stands in an observation. Verdicts of a language
model are asked for beforehand, many at a time (`afm.judging`), and looked up here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from afm.errors import JudgeError, UserError
from afm.params.tools import SandboxParams
from afm.rewards import code_tests, exact_match, math
from afm.rewards.format import grade_calls, grade_grammar, is_well_formed
from afm.rewards.overlong import overlong_penalty
from afm.rewards.reward import Reward
from afm.types import Query, StopReason, Trajectory

__all__ = [
    "REWARDS",
    "Judge",
    "Reward",
    "Rule",
    "closed_book_reward",
    "grade_answer",
    "is_well_formed",
    "overlong_penalty",
    "score_trajectory",
    "validate",
]

Grader = Callable[[str, Query, SandboxParams], float]
"""Final answer to 0 or 1; raises JudgeError where there is no verdict."""

Judge = Callable[[str, Query], float]
"""The same, of a judge that has been asked already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How one reward is made."""

    answer: Grader
    trial: Grader | None = None
    """How a gold answer is tried, where that is more, or faster, than grading it."""
    format: Callable[[Trajectory], float] | None = None
    """Factor from what the policy wrote; None where format earns nothing (paper: web and QA)."""
    is_judged: bool = False
    """Whether a language model decides; `answer` then says what decides where none can be asked (paper: screening)."""


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
    "llm_judge": Rule(answer=_every_part, is_judged=True),
    "code_tests": Rule(answer=code_tests.grade, trial=code_tests.check),
    "answer_times_format": Rule(
        answer=_tests_or_math, trial=_try_tests_or_math, format=grade_calls
    ),
    "answer_times_grammar": Rule(
        answer=_tests_or_math, trial=_try_tests_or_math, format=grade_grammar
    ),
}
"""By the name in `agents.<agent>.reward`. `exact_match` is the official training rule, `_first` its evaluation rule.

`answer_times_format` takes the official rule of code calls, `answer_times_grammar` our stricter one, the whole grammar.
"""


def score_trajectory(
    reward_name: str,
    trajectory: Trajectory,
    query: Query,
    sandbox_params: SandboxParams,
    judge: Judge | None = None,
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
    answer = grade_answer(reward_name, trajectory.answer, query, sandbox_params, judge)
    breakdown = {"answer": answer}
    value = breakdown["answer"]
    format_rule = _rule(reward_name).format
    if format_rule is not None:
        breakdown["format"] = format_rule(trajectory)
        value *= breakdown["format"]
    return Reward(value=value, breakdown=breakdown)


def grade_answer(
    reward_name: str,
    answer: str | None,
    query: Query,
    sandbox_params: SandboxParams,
    judge: Judge | None = None,
) -> float:
    """Grade a final answer alone, without format; None scores 0.

    Raises:
        JudgeError: no verdict.
        UserError: unknown reward, or one that needs a judge where none is given.
    """
    rule = _rule(reward_name)
    if rule.is_judged and judge is None:
        raise UserError(f"reward {reward_name!r} needs a judge: set judge.models.<agent>")
    if answer is None:
        return 0.0
    if rule.is_judged:
        assert judge is not None
        return judge(answer, query)
    return rule.answer(answer, query, sandbox_params)


def closed_book_reward(reward_name: str) -> str:
    """Return the reward that grades answers without tools: exact match in place of a judge (paper 3.3.1).

    Raises:
        UserError: unknown reward.
    """
    return "exact_match" if _rule(reward_name).is_judged else reward_name


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
