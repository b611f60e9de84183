"""Each filter alone, and all of them in order."""

import pytest

from afm.errors import JudgeError
from afm.filters import FILTERS, KNOBS, FilterContext, decide, measure, reasons
from afm.params.filter import FilterParams
from afm.params.reading import parse_section
from afm.types import StopReason
from tests.unit.synthetic import (
    PLAN,
    REFLECTION,
    agent_params,
    answer,
    check,
    good_parts,
    params_tree,
    query,
    search,
    suggest,
    trajectory,
)

QUERY = query()
OBSERVED = "obs:C was born in Oslo."
WITHOUT_REFLECTION = [
    PLAN + search("author of B"),
    "obs:B was written by C.",
    search("birthplace of C"),
    OBSERVED,
    suggest("Oslo") + check(4) + answer("Oslo"),
]
CORRECTED = [
    PLAN + search("author of B"),
    "obs:B was written by C.",
    suggest("C") + check(2) + search("birthplace of C"),
    OBSERVED,
    REFLECTION + suggest("Oslo") + check(4) + answer("Oslo"),
]


def params(**changes) -> FilterParams:
    tree = params_tree()["filter"]
    for key, value in changes.items():
        section, _, name = key.partition("__")
        tree[section][name] = value
    return parse_section(tree, FilterParams, where="params")


def judge(given, asked):
    return float(given in asked.answers)


def decision(parts, *, asked=QUERY, judge=judge, agent="mhqa", fields=None, **changes):
    row = trajectory(asked, parts, **(fields or {}))
    candidate = measure(row, asked, agent_params("mhqa"))
    context = FilterContext(params=params(**changes), agent=agent, judge=judge)
    return decide(candidate, context)


def test_a_good_trajectory_is_kept_with_all_it_was_judged_by():
    row = decision(good_parts())
    assert (row.decision, row.reason, row.copies) == ("kept", "ok", 1)
    assert row.values == {
        "hops": 7,
        "tool_calls": 2,
        "repeated_calls": 0,
        "violations": "",
        "has_reflection": True,
        "first_double_check": 4,
        "stop_reason": "answered",
        "correct": True,
    }


def test_complexity_counts_hops_or_tool_calls():
    short = [suggest("Oslo") + check(4) + answer("Oslo")]
    row = decision(short)
    assert (row.reason, row.values["hops"]) == ("too_few_hops", 3)
    assert "correct" not in row.values
    exactly = decision(good_parts(), complexity__minimum=7)
    assert exactly.reason == "ok"
    assert decision(good_parts(), complexity__minimum=8).reason == "too_few_hops"
    calls = {"complexity__measure": "tool_calls"}
    assert decision(good_parts(), complexity__minimum=2, **calls).reason == "ok"
    assert decision(good_parts(), complexity__minimum=3, **calls).reason == "too_few_tool_calls"


def test_quality_drops_wrong_answers():
    row = decision(good_parts("Bergen"))
    assert (row.reason, row.values["correct"]) == ("wrong_answer", False)


@pytest.mark.parametrize(
    "stop", [StopReason.FAILED, StopReason.MAX_TOKENS, StopReason.MAX_TOOL_CALLS]
)
def test_quality_never_judges_what_did_not_finish(stop):
    def refuse(given, asked):
        raise AssertionError("judged")

    row = decision(good_parts(), judge=refuse, fields={"stop_reason": stop})
    assert (row.reason, row.values["stop_reason"]) == ("unfinished", str(stop))


def test_quality_drops_what_the_judge_gives_no_verdict_on():
    def silent(given, asked):
        raise JudgeError("no verdict within 10 s")

    row = decision(good_parts(), judge=silent)
    assert (row.reason, row.values["unjudged"]) == ("unjudged", "no verdict within 10 s")


@pytest.mark.parametrize("again", ["author of B", "Author  of b "])
def test_quality_drops_redundant_calls(again):
    parts = good_parts()
    parts[2:2] = [search(again), "obs:B was written by C."]
    row = decision(parts)
    assert (row.reason, row.values["repeated_calls"]) == ("redundant_call", 1)
    assert decision(parts, quality__max_repeated_calls=1).reason == "ok"


def test_quality_drops_instruction_violations():
    parts = good_parts()
    parts[-1] = suggest("Oslo") + REFLECTION + check(4) + answer("Oslo")
    row = decision(parts)
    assert row.reason == "instruction_violation"
    assert row.values["violations"]


def test_reflection_keeps_a_seeded_share():
    kept = []
    for number in range(400):
        asked = query(f"Question {number}?")
        row = decision(WITHOUT_REFLECTION, asked=asked)
        kept.append(row.decision == "kept")
        assert row.reason in ("ok", "no_reflection")
        assert decision(WITHOUT_REFLECTION, asked=asked) == row
    assert 0.22 < sum(kept) / 400 < 0.38
    assert decision(WITHOUT_REFLECTION, reflection__keep_share_without=1.0).reason == "ok"
    none = decision(WITHOUT_REFLECTION, reflection__keep_share_without=0.0)
    assert none.reason == "no_reflection"


def test_reflection_drops_all_for_some_agents():
    share = {"reflection__keep_share_without": 1.0}
    row = decision(WITHOUT_REFLECTION, agent="code", **share)
    assert row.reason == "no_reflection"
    assert decision(good_parts(), agent="code", **share).reason == "ok"


def test_correction_copies_what_doubted_itself_and_was_right():
    row = decision(CORRECTED, correction__copies=3)
    assert (row.decision, row.copies, row.values["first_double_check"]) == ("kept", 3, 2)
    assert decision(CORRECTED, correction__low_score_max=1, correction__copies=3).copies == 1
    wrong = [*CORRECTED[:-1], CORRECTED[-1].replace("Oslo", "Bergen")]
    assert decision(wrong).decision == "dropped"
    assert decision(wrong).copies == 1


def test_filters_are_progressive_in_the_paper_order():
    assert list(FILTERS) == ["complexity", "quality", "reflection", "correction"]
    wrong_and_short = [suggest("Bergen") + check(4) + answer("Bergen")]
    assert decision(wrong_and_short).reason == "too_few_hops"
    wrong = [*WITHOUT_REFLECTION[:-1], suggest("C") + check(4) + answer("C")]
    assert decision(wrong, reflection__keep_share_without=0.0).reason == "wrong_answer"


def test_every_reason_has_a_knob():
    for name in ("hops", "tool_calls"):
        assert set(reasons(params(complexity__measure=name))) <= set(KNOBS)
