"""Pass rates and the choice of queries."""

import random

import pytest

from afm.errors import UserError
from afm.screening import PassRate, ScreenSample, pass_rates, select_queries
from tests.unit.synthetic import good_parts, query, trajectory


def sample(query_id: str, index: int, correct: bool) -> ScreenSample:
    return ScreenSample(
        query_id=query_id, sample_index=index, seed=index, text="x", answer="x", correct=correct
    )


def rate(asked, num_correct: int, num_samples: int = 10) -> PassRate:
    return PassRate(
        query_id=asked.query_id,
        num_samples=num_samples,
        num_correct=num_correct,
        pass_rate=num_correct / num_samples,
    )


def select(candidates, rates, accepted=(), **changes):
    settings = {"max_pass_rate": 0.3, "num_queries": 100, "seed": 37} | changes
    return select_queries(candidates, rates, accepted, **settings)


CANDIDATES = [query(f"Question {number}?", split="rl") for number in range(20)]


def test_pass_rates_count_by_query_whatever_the_order():
    samples = [sample(q, i, correct=i < n) for q, n in (("b", 3), ("a", 0)) for i in range(4)]
    random.Random(1).shuffle(samples)
    assert pass_rates(samples, 4) == [
        PassRate(query_id="a", num_samples=4, num_correct=0, pass_rate=0.0),
        PassRate(query_id="b", num_samples=4, num_correct=3, pass_rate=0.75),
    ]


@pytest.mark.parametrize("indices", [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_pass_rates_refuse_missing_and_repeated_samples(indices):
    with pytest.raises(UserError, match="query a has the screening samples"):
        pass_rates([sample("a", index, True) for index in indices], 3)


def test_too_easy_is_above_the_threshold_not_at_it():
    rates = [rate(asked, number % 11) for number, asked in enumerate(CANDIDATES)]
    selection = select(CANDIDATES, rates)
    for row, measured in zip(selection.ledger, rates, strict=True):
        assert row.values == {"pass_rate": measured.pass_rate}
        assert row.reason == ("too_easy" if measured.num_correct > 3 else "ok")
        assert row.decision == ("kept" if row.reason == "ok" else "dropped")
    kept = [row.id for row in selection.ledger if row.decision == "kept"]
    assert [asked.query_id for asked in selection.queries] == kept


def test_queries_of_the_sft_set_are_excluded_by_id_and_by_question():
    same_question = query("  the QUESTION 1 ", ("Bergen",), split="sft")
    assert same_question.query_id != CANDIDATES[1].query_id
    accepted = [trajectory(CANDIDATES[0], good_parts()), trajectory(same_question, good_parts())]
    selection = select(CANDIDATES, [rate(asked, 0) for asked in CANDIDATES], accepted)
    assert [row.reason for row in selection.ledger] == ["in_sft"] * 2 + ["ok"] * 18


def test_the_choice_is_seeded_and_does_not_depend_on_the_order():
    rates = [rate(asked, 0) for asked in CANDIDATES]

    def chosen(seed, candidates=CANDIDATES):
        selection = select(candidates, rates, num_queries=7, seed=seed)
        reasons = [row.reason for row in selection.ledger]
        assert (reasons.count("ok"), reasons.count("not_chosen")) == (7, 13)
        return {asked.query_id for asked in selection.queries}

    assert chosen(1) == chosen(1, CANDIDATES[::-1])
    assert chosen(1) != chosen(2)
    counts = [sum(asked.query_id in chosen(seed) for seed in range(60)) for asked in CANDIDATES]
    assert min(counts) > 8 and max(counts) < 36


def test_pass_rates_must_be_those_of_the_candidates():
    rates = [rate(asked, 0) for asked in CANDIDATES]
    with pytest.raises(UserError, match="1 candidates have none"):
        select(CANDIDATES, rates[1:])
    with pytest.raises(UserError, match="1 belong to other"):
        select(CANDIDATES[1:], rates)
    with pytest.raises(UserError, match="stands twice"):
        select(CANDIDATES, [*rates, rates[0]])


def test_nothing_left_says_why_and_what_to_change():
    accepted = [trajectory(CANDIDATES[0], good_parts())]
    rates = [rate(asked, 0 if asked is CANDIDATES[0] else 9) for asked in CANDIDATES]
    with pytest.raises(UserError, match=r"19 too_easy \(raise select.max_pass_rate\), 1 in_sft"):
        select(CANDIDATES, rates, accepted)
