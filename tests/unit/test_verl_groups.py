"""Dynamic sampling: which groups are kept, and how many queries are drawn next."""

import math

from hypothesis import given
from hypothesis import strategies as st

from afm.training.verl.groups import Sample, Tally, by_group, informative, next_draw, usable


def sample(acc: float, *, agent: str = "mhqa", penalty: float = 0.0) -> Sample:
    return Sample(
        agent=agent,
        query_id="q",
        acc=acc,
        reward=acc + penalty,
        policy_tokens=10,
        observation_tokens=5,
        tool_calls=1,
        logprob=-5.0,
    )


def test_a_group_needs_two_rewards() -> None:
    assert informative([sample(0.0), sample(1.0)])
    assert not informative([sample(1.0), sample(1.0)])
    assert not informative([sample(1.0)])
    assert not informative([])


def test_the_overlong_penalty_is_no_signal() -> None:
    assert not informative([sample(0.0), sample(0.0, penalty=-0.5)])


def test_a_group_that_failed_whole_is_never_used() -> None:
    assert not usable([], dynamic_sampling=False)
    assert usable([sample(0.0)], dynamic_sampling=False)
    assert not usable([sample(0.0)], dynamic_sampling=True)


def test_missing_samples_count_as_failed_and_move_no_mean() -> None:
    tally = Tally(group_size=4)
    tally.add([sample(1.0), sample(1.0), sample(0.0)], kept=True)
    assert tally.failed == 1
    assert tally.failed_share == 0.25
    assert tally.metrics()["acc_mean"] == 2 / 3
    assert tally.metrics()["entropy"] == 0.5
    assert tally.metrics()["response_length"] == 15


def test_an_empty_tally_is_undefined() -> None:
    assert math.isnan(Tally(group_size=4).failed_share)
    assert math.isnan(Tally(group_size=4).metrics()["reward_mean"])


def test_rollouts_are_counted_per_agent() -> None:
    tally = Tally(group_size=2)
    tally.add([sample(1.0), sample(0.0)], kept=True)
    tally.add([sample(1.0, agent="web"), sample(0.0, agent="web")], kept=True)
    metrics = tally.metrics()
    assert (metrics["rollouts/mhqa"], metrics["rollouts/web"], metrics["rollouts"]) == (2, 2, 4)


@given(st.integers(1, 64), st.integers(1, 200), st.data())
def test_the_next_draw_is_bounded_and_follows_the_kept_share(
    batch: int, groups: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, min(groups, batch - 1)))
    draw = next_draw(Tally(group_size=8, groups=groups, kept=kept), batch)
    assert 1 <= draw <= batch
    if kept:
        assert draw == batch or draw * kept >= (batch - kept) * groups


def test_samples_are_grouped_by_query() -> None:
    samples = {"q2_0_0": sample(0.0), "q1_1_0": sample(1.0), "q1_0_0": sample(0.0)}
    groups = by_group(samples)
    assert list(groups) == ["q1", "q2"]
    assert [s.acc for s in groups["q1"]] == [0.0, 1.0]
