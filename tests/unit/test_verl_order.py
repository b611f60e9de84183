"""The endless stream of training rows."""

from hypothesis import given
from hypothesis import strategies as st

from afm.training.verl.order import row_at


@given(st.integers(1, 20), st.integers(0, 3), st.integers(1, 8), st.integers(0, 5))
def test_every_pass_draws_every_query_once(
    queries: int, fixtures: int, own: int, seed: int
) -> None:
    size = own + fixtures
    rows = [
        row_at(i, queries=queries, fixtures=fixtures, batch_size=size, seed=seed)
        for i in range(size * queries)
    ]
    drawn = [row for row in rows if row < queries]
    for start in range(0, len(drawn), queries):
        assert sorted(drawn[start : start + queries]) == list(range(queries))


@given(st.integers(1, 20), st.integers(0, 3), st.integers(1, 8))
def test_every_batch_ends_with_the_fixtures(queries: int, fixtures: int, own: int) -> None:
    size = own + fixtures
    for batch in range(4):
        positions = range(batch * size, (batch + 1) * size)
        rows = [
            row_at(i, queries=queries, fixtures=fixtures, batch_size=size, seed=1)
            for i in positions
        ]
        assert rows[own:] == list(range(queries, queries + fixtures))
        assert all(row < queries for row in rows[:own])


def test_seed_and_pass_change_the_order() -> None:
    def order(seed: int, start: int) -> list[int]:
        return [
            row_at(start + i, queries=50, fixtures=0, batch_size=5, seed=seed) for i in range(50)
        ]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 50)
