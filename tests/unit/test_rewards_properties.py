"""What holds for every answer: idempotent, symmetric and monotone rules, where they must be."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from afm.rewards import math
from afm.rewards.exact_match import SEPARATOR, grade_every_part, grade_first_part, normalise

TEXT = st.text(max_size=20) | st.lists(
    st.sampled_from(
        [
            "the",
            "a",
            "An",
            "-5",
            "3.5",
            ".",
            "-",
            "|",
            "U.S.",
            "\u0130",
            "\ufb01",
            " ",
            "\u2212",
            "1,0",
            "x",
        ]
    ),
    max_size=6,
).map("".join)
WORD = TEXT.map(lambda text: text.replace(SEPARATOR, ""))


@given(TEXT)
@example("\u0130")
@example("a.")
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(TEXT)
def test_case_and_outer_white_space_never_count(text: str) -> None:
    assert normalise(f"  {text}\n") == normalise(text)


@given(WORD, WORD)
def test_exact_match_is_symmetric(one: str, other: str) -> None:
    assert grade_every_part(one, [other]) == grade_every_part(other, [one])
    assert grade_first_part(one, [other]) == grade_first_part(other, [one])


@given(WORD)
def test_every_answer_equals_itself_unless_it_is_nothing(text: str) -> None:
    assert grade_every_part(text, [text]) == float(normalise(text) != "")


@given(TEXT, st.lists(WORD, max_size=3), WORD)
def test_one_more_gold_answer_never_costs(answer: str, golds: list[str], more: str) -> None:
    for grade in (grade_every_part, grade_first_part):
        assert grade(answer, [*golds, more]) >= grade(answer, golds)


@given(TEXT, WORD, st.lists(WORD, min_size=1, max_size=3))
def test_one_more_part_never_pays_in_training_and_changes_nothing_in_evaluation(
    answer: str, part: str, golds: list[str]
) -> None:
    longer = f"{answer}{SEPARATOR}{part}"
    assert grade_every_part(longer, golds) <= grade_every_part(answer, golds)
    assert grade_first_part(longer, golds) == grade_first_part(answer, golds)


@given(st.lists(WORD, min_size=1, max_size=3), st.lists(WORD, min_size=1, max_size=3))
def test_the_order_of_parts_does_not_count_in_training(parts: list[str], golds: list[str]) -> None:
    there, back = SEPARATOR.join(parts), SEPARATOR.join(parts[::-1])
    assert grade_every_part(there, golds) == grade_every_part(back, golds[::-1])


NUMBERS = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.tuples(st.integers(-99, 99), st.integers(2, 99)).map(
        lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"
    ),
    st.decimals(-100, 100, places=2).map(str),
)


def _has_math() -> bool:
    named = os.environ.get(math.PYTHON_VARIABLE)
    return Path(named or Path(sys.prefix).parent / ".venv-math/bin/python").exists()


@pytest.mark.skipif(not _has_math(), reason="no .venv-math beside this environment")
@settings(max_examples=60, deadline=None)
@given(NUMBERS, NUMBERS)
def test_math_is_symmetric_on_numbers_and_accepts_what_is_equal(one: str, other: str) -> None:
    def boxed(text: str) -> str:
        return f"\\boxed{{{text}}}"

    assert math.grade(boxed(one), other) == math.grade(boxed(other), one)
    assert math.grade(boxed(one), one) == math.check(one) == 1.0
