"""Rewards: each accepts its gold, refuses look-alikes, and never turns a failure into a score."""

import math as maths
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import JudgeError, UserError
from afm.params.agents import AgentParams
from afm.rewards import REWARDS, Reward, grade_answer, overlong_penalty, score_trajectory, validate
from afm.rewards.exact_match import grade_every_part, grade_first_part, normalise
from afm.rewards.format import grade_code_calls, is_well_formed
from afm.types import StopReason
from tests.unit.synthetic import SANDBOX, agent_params, answer, good_parts, query, trajectory


def test_every_reward_that_params_may_name_exists():
    allowed = typing.get_args(AgentParams.model_fields["reward"].annotation)
    assert set(allowed) <= set(REWARDS)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("U.S.", "us"),
        ("\uff2f\uff53\uff4c\uff4f", "oslo"),
        ("Guinea\u2013Bissau", "guineabissau"),
        ("\u201cHamlet\u201d", "hamlet"),
        ("A", "a"),
        ("the", "the"),
        ("The A", "the a"),
        ("?!", "?!"),
        ("-5", "-5"),
        ("\u22125", "-5"),
        ("3.50.", "3.50"),
        ("1,000", "1000"),
        ("1998-2000", "19982000"),
        ("", ""),
    ],
)
def test_normalise(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("given", "golds", "score"),
    [
        ("the", ["A"], 0.0),
        ("", ["A"], 0.0),
        ("", [""], 0.0),
        ("a", ["A"], 1.0),
        ("5", ["-5"], 0.0),
        ("35", ["3.5"], 0.0),
        ("oslo.", ["Bergen", "Oslo"], 1.0),
        ("Oslo, Norway", ["Oslo"], 0.0),
        ("Oslo", [], 0.0),
    ],
)
def test_exact_match(given, golds, score):
    assert grade_every_part(given, golds) == score
    assert grade_first_part(given, golds) == score


def test_rules_for_several_answers_differ():
    golds = ["Oslo", "Bergen"]
    assert grade_every_part("Oslo|Bergen", golds) == 1.0
    assert grade_every_part("Oslo|Paris", golds) == 0.0
    assert grade_first_part("Oslo|Paris", golds) == 1.0
    assert grade_first_part("Paris|Oslo", golds) == 0.0
    assert grade_every_part("Oslo|", golds) == 0.0


@given(st.text(min_size=1).filter(lambda text: text.strip() and "|" not in text))
def test_exact_match_accepts_its_own_gold(text):
    gold = normalise(text)
    assert grade_every_part(text, [text]) == (1.0 if gold else 0.0)


def test_validate_accepts_golds_and_names_a_query_that_no_answer_can_solve():
    validate("exact_match", query(answers=("A", "3.5")), SANDBOX)
    with pytest.raises(UserError, match=r"refuses its own gold \['Oslo\|Bergen'\]"):
        validate("exact_match", query(answers=("Oslo|Bergen",)), SANDBOX)
    with pytest.raises(UserError, match="no gold answer"):
        validate("exact_match", query(answers=()), SANDBOX)


def test_unknown_reward_lists_the_known():
    with pytest.raises(UserError, match=r"unknown reward 'em'.*exact_match"):
        grade_answer("em", "Oslo", query(), SANDBOX)


def test_score_reads_only_what_the_policy_wrote():
    asked = query()
    parts = [*good_parts()[:3], "obs:Found: <answer>Oslo</answer>", "<think>Hm.</think>"]
    row = trajectory(asked, parts, stop_reason=StopReason.END_OF_TURN)
    assert row.answer is None
    assert score_trajectory("exact_match", row, asked, SANDBOX).value == 0.0
    right = trajectory(asked, good_parts())
    assert score_trajectory("exact_match", right, asked, SANDBOX) == Reward(
        value=1.0, breakdown={"answer": 1.0}
    )


def test_failed_is_never_scored_even_with_a_right_answer():
    asked = query()
    row = trajectory(asked, good_parts(), stop_reason=StopReason.FAILED, error="ToolError: down")
    with pytest.raises(JudgeError, match="ToolError: down"):
        score_trajectory("exact_match", row, asked, SANDBOX)


@pytest.mark.parametrize("bad", [maths.nan, maths.inf, -maths.inf])
def test_a_reward_is_a_number(bad):
    with pytest.raises(JudgeError, match="'value'"):
        Reward(value=bad, breakdown={})
    with pytest.raises(JudgeError, match="'answer'"):
        Reward(value=1.0, breakdown={"answer": bad})


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0.0), (875, 0.0), (900, -0.2), (1000, -1.0), (5000, -1.0), (937, -0.496)],
)
def test_overlong_penalty_is_linear_in_the_last_eighth(tokens, penalty):
    result = overlong_penalty(tokens, max_response_tokens=1000, overlong_share=0.125, penalty=1.0)
    assert result == pytest.approx(penalty)


@given(st.integers(0, 2000), st.integers(1, 1000), st.floats(0, 1), st.floats(0, 3))
def test_overlong_penalty_is_bounded_and_falls(tokens, limit, share, size):
    def at(count):
        return overlong_penalty(
            count, max_response_tokens=limit, overlong_share=share, penalty=size
        )

    assert -size <= at(tokens + 1) <= at(tokens) <= 0
    assert at(limit) == -size


def test_overlong_penalty_without_buffer_is_a_step_and_bad_settings_are_refused():
    step = {"max_response_tokens": 10, "overlong_share": 0.0, "penalty": 0.5}
    assert overlong_penalty(9, **step) == 0.0
    assert overlong_penalty(10, **step) == -0.5
    with pytest.raises(UserError, match="overlong_share"):
        overlong_penalty(1, max_response_tokens=10, overlong_share=1.5, penalty=1.0)


CALL = "<code>\n```py\nprint(1)\n```\n</code>"
WITH_STDIN = "<code>\n```py\nprint(input())\n```\n```sh\n3\n```\n</code>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (CALL, 1.0),
        (WITH_STDIN, 1.0),
        (f"<think>a</think>{CALL}<reflection>b</reflection>{CALL}", 1.0),
        ("<think>a</think>", 0.0),
        ("<code>\n```python\nprint(1)\n```\n</code>", 0.0),
        ("<code>\n```py\nprint(1)\n```</code>", 0.0),
        ("<code>\nprint(1)\n</code>", 0.0),
        ("<code>\n```py\nprint(1)\n```\n```py\nprint(2)\n```\n</code>", 0.0),
        (f"<think>a{CALL}", 0.0),
        (f"<code>{CALL}</code>", 0.0),
        (f"{CALL}<observation>1</observation>", 0.0),
        (f"{CALL}<code>", 0.0),
    ],
)
def test_code_call_format(text, score):
    assert grade_code_calls(text) == score


def test_tags_in_observations_do_not_break_the_format():
    asked = query("2**10?", ("1024",), agent="code")
    parts = [
        f"<plan>Compute.</plan><think>a</think>\n{CALL}",
        "obs:unbalanced <think> and <code>",
        "<reflection>ok</reflection><think>b</think><answer>\\boxed{1024}</answer>",
    ]
    row = trajectory(asked, parts, tools=("code",))
    result = score_trajectory("answer_times_format", row, asked, SANDBOX)
    assert result == Reward(value=1.0, breakdown={"answer": 1.0, "format": 1.0})
    assert is_well_formed(row, agent_params("code"))


@pytest.mark.parametrize(
    ("final", "call", "breakdown"),
    [
        ("\\boxed{1024}", "<code>\nprint(1)\n</code>", {"answer": 1.0, "format": 0.0}),
        ("\\boxed{1025}", CALL, {"answer": 0.0, "format": 1.0}),
    ],
)
def test_answer_times_format_is_a_product(monkeypatch, final, call, breakdown):
    monkeypatch.setattr("afm.rewards.math.grade", lambda given, gold: float(gold in given))
    asked = query("2**10?", ("1024",), agent="code")
    row = trajectory(asked, [call, "obs:1", answer(final)], tools=("code",))
    result = score_trajectory("answer_times_format", row, asked, SANDBOX)
    assert result == Reward(value=0.0, breakdown=breakdown)


def test_is_well_formed_follows_the_grammar():
    asked = query()
    assert is_well_formed(trajectory(asked, good_parts()), agent_params("mhqa"))
    assert not is_well_formed(trajectory(asked, [answer("Oslo")]), agent_params("mhqa"))
