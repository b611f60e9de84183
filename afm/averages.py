"""Means and shares, where undefined is NaN, never 0. Plain Python: stages are declared beside it."""

import math
from collections.abc import Iterable


def mean(values: Iterable[float]) -> float:
    """Return the mean of `values`, NaN when there are none. The sum is exact, so their order does not matter."""
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def share(count: float, total: float) -> float:
    """Return count / total, NaN when `total` is 0."""
    return count / total if total else math.nan
