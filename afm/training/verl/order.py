"""The order of training rows: a function of seed and position alone, so that a resumed run sees the same rows."""

import random
from functools import lru_cache

from afm.ids import derived_seed


@lru_cache(maxsize=4)
def permutation(size: int, seed: int, number: int) -> tuple[int, ...]:
    """Return the order of pass `number` over `size` queries."""
    order = list(range(size))
    random.Random(derived_seed(seed, "order", number)).shuffle(order)
    return tuple(order)


def row_at(position: int, *, queries: int, fixtures: int, batch_size: int, seed: int) -> int:
    """Return the row at a position of the endless stream of training rows.

    Every batch ends with all fixture rows; the rest walks through seeded passes over the queries.

    Args:
        position: Rows drawn before this one.
        queries: Number of training queries; rows 0 to `queries` - 1.
        fixtures: Number of fixture rows; the rows after them.
        batch_size: Rows per batch, fixtures included.
        seed: Seed of the order.
    """
    batch, offset = divmod(position, batch_size)
    own = batch_size - fixtures
    if offset >= own:
        return queries + offset - own
    number, place = divmod(batch * own + offset, queries)
    return permutation(queries, seed, number)[place]
