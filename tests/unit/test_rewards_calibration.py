"""The gold set and what it tells about a judge."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from afm.chat import ModelClient
from afm.endpoint import Endpoint
from afm.errors import UserError
from afm.rewards.calibration import Calibration, calibrate
from afm.rewards.gold_pairs import make_pairs, read_pairs
from afm.rewards.llm_judge import Judgements, LlmJudge, Verdict, VerdictCache
from tests.unit.fake_server import said, scripted_server
from tests.unit.judge_world import LIMITS, WHO, honest
from tests.unit.synthetic import asking_params

GOLDS = tuple(read_pairs())


def calibration(right: int, accepted: int = 0, unjudged: int = 0) -> Calibration:
    """A judge that knows the first `right` pairs of the gold set, then accepts or does not answer some wrong ones."""
    wrong = [gold for gold in GOLDS if not gold.correct]
    lost = {gold.pair: "down" for gold in wrong[:unjudged]}
    fooled = {gold.pair for gold in wrong[unjudged : unjudged + accepted]}
    verdicts = {
        gold.pair: Verdict(correct=gold.correct or gold.pair in fooled, rationale="")
        for gold in GOLDS[:right]
        if gold.pair not in lost
    }
    return Calibration(golds=GOLDS, judgements=Judgements(verdicts=verdicts, unjudged=lost))


def test_the_shipped_set_is_the_one_that_the_templates_make() -> None:
    assert list(GOLDS) == make_pairs(), "run `python -m afm.rewards.gold_pairs`"
    assert len(GOLDS) == len({gold.pair for gold in GOLDS}) >= 300
    kinds = Counter(gold.category for gold in GOLDS)
    assert len(kinds) == 13
    assert min(kinds.values()) >= 12
    assert 100 < sum(gold.correct for gold in GOLDS) < 200


def test_a_perfect_judge_a_fooled_one_and_one_that_is_silent() -> None:
    assert calibration(len(GOLDS)).metrics("x") == {
        "x/judge/agreement": 1.0,
        "x/judge/false_accepts": 0.0,
        "x/judge/false_rejects": 0.0,
        "x/judge/unjudged_share": 0.0,
    }
    wrong = sum(not gold.correct for gold in GOLDS)
    fooled = calibration(len(GOLDS), accepted=29)
    assert fooled.false_accepts == pytest.approx(29 / wrong)
    assert fooled.agreement == pytest.approx(1 - 29 / len(GOLDS))
    silent = calibration(len(GOLDS), unjudged=40)
    assert silent.unjudged_share == pytest.approx(40 / len(GOLDS))
    assert silent.agreement == pytest.approx(1 - 40 / len(GOLDS))
    assert silent.false_accepts == 0.0


def test_too_little_agreement_stops_and_says_where() -> None:
    calibration(len(GOLDS)).check("judge", 1.0)
    with pytest.raises(UserError, match=r"'judge' agrees with 0\.887.*min_agreement 0\.9.*: down"):
        calibration(len(GOLDS), unjudged=40).check("judge", 0.9)
    with pytest.raises(UserError, match=r"agrees with 0\.000"):
        calibration(0).check("judge", 0.01)


def test_a_text_matcher_is_no_judge(tmp_path: Path) -> None:
    async def work(endpoint: Endpoint) -> Calibration:
        async with ModelClient(endpoint, LIMITS) as client:
            asking = asking_params()
            cache = VerdictCache(tmp_path)
            return await calibrate(
                LlmJudge(client=client, model=WHO, asking=asking, cache=cache), GOLDS[:60]
            )

    with scripted_server(said(""), reply=honest) as (endpoint, _):
        found = asyncio.run(work(endpoint))
    assert found.unjudged_share == found.false_accepts == 0.0
    assert 0.5 < found.false_rejects <= 1.0
    with pytest.raises(UserError, match="fails most at"):
        found.check("matcher", 0.9)
