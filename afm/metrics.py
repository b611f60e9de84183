"""Estimators over scored samples. Undefined is NaN, never 0; every one is tested against brute force."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from afm.averages import mean

Floats = NDArray[np.float64]

BLOCK = 1 << 21
"""Resampled indices drawn at once: bounds memory to some tens of MiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean with a two-sided bootstrap interval; NaN where undefined."""

    mean: float
    low: float
    high: float


def query_means(groups: Sequence[Sequence[float]]) -> Floats:
    """Average the samples of each query: `[Q]`, NaN for a query without a scored sample."""
    return np.array([mean(group) for group in groups], dtype=np.float64)


def avg_at_k(groups: Sequence[Sequence[float]]) -> float:
    """Mean over queries of the mean over each query's samples (paper: avg@k).

    A query without a scored sample has no mean and does not count.
    """
    means = query_means(groups)
    return mean(means[~np.isnan(means)])


def pass_at_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> Floats:
    """Chance that k of the samples, drawn without replacement, hold a correct one: 1 - C(n-c, k) / C(n, k).

    Unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1). `[Q]`; NaN where n < k or k < 1.
    """
    n, c = np.broadcast_arrays(np.asarray(num_samples), np.asarray(num_correct))
    if np.any((c < 0) | (c > n)):
        raise ValueError(f"num_correct must be in [0, num_samples], got {c} of {n}")
    chance_of_none = np.ones(n.shape, dtype=np.float64)
    for drawn in range(max(k, 0)):
        left = np.maximum(n - drawn, 1)
        chance_of_none *= np.maximum(n - c - drawn, 0) / left
    defined = (n >= k) & (k >= 1)
    return np.where(defined, 1.0 - chance_of_none, np.nan)


def best_of_n(scores: Sequence[float], preferences: Sequence[float]) -> float:
    """Score of the sample that a chooser prefers; the first of equals. NaN without samples.

    Args:
        scores: `[N]`.
        preferences: `[N]`, higher is preferred; must not be the scores themselves (that is pass@n).
    """
    if len(scores) != len(preferences):
        raise ValueError(f"{len(scores)} scores but {len(preferences)} preferences")
    return float(scores[int(np.argmax(preferences))]) if scores else math.nan


def bootstrap_mean(values: ArrayLike, *, resamples: int, confidence: float, seed: int) -> Estimate:
    """Percentile bootstrap of a mean over queries.

    With `query_means` as values this is the cluster bootstrap: queries are resampled, each with all its samples.

    Args:
        values: `[Q]`; NaN entries do not count. Fewer than two leave the interval undefined.
        resamples: number of resampled means.
        confidence: of the two-sided interval, in (0, 1).
        seed: of numpy's PCG64.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    if array.size < 2:
        return Estimate(mean=mean(array), low=math.nan, high=math.nan)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(_resampled_means(array, resamples, seed), [tail, 1.0 - tail])
    return Estimate(mean=mean(array), low=float(low), high=float(high))


def paired_bootstrap(
    new: ArrayLike, old: ArrayLike, *, resamples: int, confidence: float, seed: int
) -> Estimate:
    """Bootstrap the mean difference of two policies over the same queries.

    Args:
        new: `[Q]` means per query.
        old: `[Q]` means of the same queries in the same order; a query that is NaN in either does not count.
        resamples: number of resampled differences.
        confidence: of the two-sided interval.
        seed: of numpy's PCG64.
    """
    first, second = np.asarray(new, dtype=np.float64), np.asarray(old, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"paired values must match: {first.shape} against {second.shape}")
    return bootstrap_mean(first - second, resamples=resamples, confidence=confidence, seed=seed)


def _resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    rows = max(1, BLOCK // values.size)
    blocks = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), values.size)
        picks = random.integers(0, values.size, size=shape, dtype=np.int32)
        blocks.append(values[picks].mean(axis=1))
    return np.concatenate(blocks)
