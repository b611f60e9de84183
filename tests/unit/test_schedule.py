"""Learning rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.training.schedule import ScheduleName, lr_share

NAMES: tuple[ScheduleName, ...] = ("cosine", "linear", "constant")


def shares(total: int, warmup: float, name: ScheduleName) -> list[float]:
    return [
        lr_share(step, total_steps=total, warmup_share=warmup, schedule=name)
        for step in range(total)
    ]


@given(st.integers(1, 60), st.floats(0, 1), st.sampled_from(NAMES))
def test_a_rate_is_positive_and_at_most_the_peak(
    total: int, warmup: float, name: ScheduleName
) -> None:
    rates = shares(total, warmup, name)
    assert all(0 < rate <= 1 for rate in rates)


def test_it_rises_linearly_then_falls() -> None:
    rates = shares(10, 0.2, "linear")
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[-1] == pytest.approx(1 / 8)


def test_cosine_is_half_way_in_the_middle() -> None:
    rates = shares(8, 0.0, "cosine")
    assert rates[0] == 1.0
    assert rates[4] == pytest.approx(0.5)


def test_constant_stays() -> None:
    assert shares(4, 0.0, "constant") == [1.0] * 4
