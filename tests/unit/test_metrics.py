"""Estimators against brute force."""

import itertools
import math
import statistics
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.averages import mean, share
from afm.metrics import (
    avg_at_k,
    best_of_n,
    bootstrap_mean,
    paired_bootstrap,
    pass_at_k,
    query_means,
)


def brute_pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    outcomes = [1] * num_correct + [0] * (num_samples - num_correct)
    draws = list(itertools.combinations(outcomes, k))
    return sum(any(draw) for draw in draws) / len(draws)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_equals_enumeration(num_samples, data):
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    estimate = pass_at_k([num_samples], [num_correct], k)[0]
    assert estimate == pytest.approx(brute_pass_at_k(num_samples, num_correct, k), abs=1e-12)


def test_pass_at_k_is_vectorised_and_undefined_below_k():
    result = pass_at_k([4, 3, 4, 0], [0, 3, 4, 0], 4)
    assert result[0] == 0.0
    assert math.isnan(result[1])
    assert result[2] == 1.0
    assert math.isnan(result[3])
    assert math.isnan(pass_at_k([4], [2], 0)[0])


def test_pass_at_k_refuses_more_correct_than_samples():
    with pytest.raises(ValueError, match="num_correct"):
        pass_at_k([2], [3], 1)


@given(st.lists(st.lists(st.floats(0, 1), max_size=5), max_size=6))
def test_avg_at_k_equals_the_mean_of_means(groups):
    means = [statistics.fmean(group) for group in groups if group]
    expected = statistics.fmean(means) if means else math.nan
    assert avg_at_k(groups) == pytest.approx(expected, nan_ok=True)


def test_avg_at_k_weighs_queries_not_samples():
    assert avg_at_k([[1.0], [0.0, 0.0, 0.0]]) == 0.5


def test_empty_is_nan_never_zero():
    assert math.isnan(mean([]))
    assert math.isnan(share(0, 0))
    assert math.isnan(avg_at_k([[], []]))
    assert math.isnan(best_of_n([], []))
    assert math.isnan(bootstrap_mean([], resamples=10, confidence=0.9, seed=1).mean)


@given(st.lists(st.floats(-1e6, 1e6)), st.randoms())
def test_a_mean_does_not_depend_on_order(values, random):
    shuffled = random.sample(values, len(values))
    assert mean(values) == pytest.approx(
        float(np.mean(values)) if values else math.nan, nan_ok=True
    )
    assert mean(shuffled) == mean(values) or not values


def test_best_of_n_follows_the_chooser_and_takes_the_first_of_equals():
    assert best_of_n([0.0, 1.0, 0.0], [0.1, 0.2, 0.9]) == 0.0
    assert best_of_n([0.0, 1.0, 0.0], [0.1, 0.9, 0.2]) == 1.0
    assert best_of_n([0.25, 1.0], [0.5, 0.5]) == 0.25
    with pytest.raises(ValueError, match="2 scores but 1"):
        best_of_n([0.0, 1.0], [0.5])


def test_bootstrap_equals_the_enumerated_distribution():
    values = [0.0, 0.25, 1.0]
    every = [statistics.fmean(draw) for draw in itertools.product(values, repeat=3)]
    estimate = bootstrap_mean(values, resamples=40_000, confidence=0.6, seed=3)
    low, high = np.quantile(every, [0.2, 0.8], method="inverted_cdf")
    assert estimate.mean == pytest.approx(statistics.fmean(values))
    assert estimate.low == pytest.approx(low, abs=1e-9)
    assert estimate.high == pytest.approx(high, abs=1e-9)


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        sample = random.binomial(1, 0.4, size=80)
        estimate = bootstrap_mean(sample, resamples=400, confidence=0.9, seed=seed)
        hits += estimate.low <= 0.4 <= estimate.high
    assert 0.83 <= hits / 200 <= 0.97


def test_cluster_bootstrap_is_wider_than_pretending_samples_are_independent():
    groups = [[1.0] * 4] * 20 + [[0.0] * 4] * 20
    clusters = bootstrap_mean(query_means(groups), resamples=4000, confidence=0.95, seed=1)
    flat = bootstrap_mean(np.concatenate(groups), resamples=4000, confidence=0.95, seed=1)
    assert clusters.high - clusters.low > 1.6 * (flat.high - flat.low)


def test_bootstrap_of_blocks_equals_one_block(monkeypatch):
    values = np.linspace(0, 1, 50)
    whole = bootstrap_mean(values, resamples=999, confidence=0.95, seed=4)
    monkeypatch.setattr("afm.metrics.BLOCK", 1000)
    assert bootstrap_mean(values, resamples=999, confidence=0.95, seed=4) == whole


def test_bootstrap_is_seeded_and_undefined_for_one_query():
    values = np.linspace(0, 1, 30)
    first = bootstrap_mean(values, resamples=500, confidence=0.95, seed=4)
    assert first == bootstrap_mean(values, resamples=500, confidence=0.95, seed=4)
    assert first != bootstrap_mean(values, resamples=500, confidence=0.95, seed=5)
    single = bootstrap_mean([0.5, math.nan], resamples=10, confidence=0.95, seed=4)
    assert single.mean == 0.5
    assert math.isnan(single.low) and math.isnan(single.high)


def test_paired_bootstrap_uses_the_pairing():
    random = np.random.default_rng(1)
    old = random.uniform(0, 1, size=100)
    new = old + 0.05 + random.normal(0, 0.01, size=100)
    paired = paired_bootstrap(new, old, resamples=2000, confidence=0.95, seed=1)
    assert paired.low > 0.04
    shuffled = paired_bootstrap(
        random.permutation(new), old, resamples=2000, confidence=0.95, seed=1
    )
    assert shuffled.mean == pytest.approx(paired.mean)
    assert shuffled.low < 0 < paired.low


def test_paired_bootstrap_drops_pairs_with_an_undefined_half_and_refuses_other_shapes():
    estimate = paired_bootstrap(
        [1.0, math.nan, 1.0], [0.0, 0.0, 1.0], resamples=100, confidence=0.9, seed=1
    )
    assert estimate.mean == 0.5
    with pytest.raises(ValueError, match="must match"):
        paired_bootstrap([1.0], [1.0, 0.0], resamples=10, confidence=0.9, seed=1)


def test_ten_thousand_resamples_of_two_hundred_queries_take_under_a_second():
    values = np.random.default_rng(0).uniform(size=200)
    started = time.process_time()
    bootstrap_mean(values, resamples=10_000, confidence=0.95, seed=1)
    assert time.process_time() - started < 1.0
