"""Intervals against scipy and by their coverage."""

import numpy as np
import pytest
import scipy.stats

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import bootstrap_interval, mean_interval, share_interval, wilson_interval


def test_interval_against_scipy():
    values = np.random.default_rng(0).normal(0.3, 0.2, 50)
    low, high = scipy.stats.t.interval(0.9, 49, values.mean(), scipy.stats.sem(values))
    np.testing.assert_allclose(mean_interval(values, 0.9), (values.mean(), low, high), rtol=1e-12)


@pytest.mark.parametrize("right", [0, 2, 32, 64])
def test_share_interval_of_one_sample_each_is_wilsons(right):
    expected = scipy.stats.binomtest(right, 64).proportion_ci(method="wilson")
    got = share_interval(np.arange(64) < right)
    np.testing.assert_allclose(got, (right / 64, expected.low, expected.high), rtol=1e-12, atol=1e-15)


def test_share_interval_counts_questions_not_samples():
    alike = np.repeat(np.arange(64) < 16, 4).reshape(64, 4).mean(-1)
    assert share_interval(alike) == share_interval(np.arange(64) < 16)
    spread = np.random.default_rng(2).binomial(4, 0.25, 4096) / 4
    independent = scipy.stats.binomtest(int(spread.sum() * 4), 4 * 4096).proportion_ci(method="wilson")
    np.testing.assert_allclose(share_interval(spread)[1:], (independent.low, independent.high), atol=5e-4)
    with pytest.raises(ValueError, match="shares lie in"):
        share_interval(np.array([0.5, 1.5]))


def test_weighted_shares_are_a_ratio_of_sums():
    shares, counts = np.array([1.0, 0.0, 0.5]), np.array([3, 1, 4])
    # 5 of 8. Squared residuals of the sums: (3 - 15/8)^2, (0 - 5/8)^2, (2 - 20/8)^2; over 8^2 the variance.
    draws = (5 / 8 * 3 / 8) / ((81 / 64 + 25 / 64 + 16 / 64) / 64)
    z2 = scipy.stats.norm.ppf(0.975) ** 2
    centre = (5 / 8 + z2 / (2 * draws)) / (1 + z2 / draws)
    half = np.sqrt(z2 * (15 / 64 / draws + z2 / (4 * draws**2))) / (1 + z2 / draws)
    np.testing.assert_allclose(
        share_interval(shares, weights=counts), (5 / 8, centre - half, centre + half), rtol=1e-12
    )
    with_none = share_interval([*shares, 0.0], weights=[*counts, 0])
    np.testing.assert_allclose(with_none, share_interval(shares, weights=counts), rtol=1e-12)
    assert share_interval(shares, weights=[2, 2, 2]) == share_interval(shares)
    # Without spread, (3 + 1)^2 / (3^2 + 1^2) = 1.6 questions.
    assert share_interval([0.0, 0.0], weights=[3, 1]).high == pytest.approx(z2 / (1.6 + z2))
    for weights in ([1, 2], [1, 2, -1], [0, 0, 0]):
        with pytest.raises(UserError, match="accepted are 3 numbers from 0, not all of them 0"):
            share_interval(shares, weights=weights)


def test_weighted_interval_covers_as_often_as_it_says():
    generator = np.random.default_rng(5)
    inside = []
    for _ in range(800):
        chances, counts = generator.beta(1, 3, 256), generator.integers(0, 5, 256)
        right = generator.binomial(counts, chances)
        _, low, high = share_interval(right / np.maximum(counts, 1), weights=counts)
        inside.append(low <= 0.25 <= high)
    assert 0.93 <= np.mean(inside) <= 0.97


def test_a_gain_without_spread_claims_nothing_it_did_not_see():
    wilson = scipy.stats.binomtest(32, 64).proportion_ci(method="wilson")
    np.testing.assert_allclose(mean_interval(np.zeros(64)), (0.0, 2 * wilson.low - 1, 2 * wilson.high - 1), rtol=1e-12)
    assert mean_interval(np.array([1.0])).low < 0
    assert mean_interval(np.array([-3.0])) == (-3.0, -np.inf, np.inf)


@pytest.mark.parametrize("interval", [mean_interval, share_interval])
def test_interval_covers_as_often_as_it_says(interval):
    generator = np.random.default_rng(1)
    inside = [
        low <= 0.25 <= high for _, low, high in (interval(generator.binomial(4, 0.25, 256) / 4) for _ in range(800))
    ]
    assert 0.93 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize(("right", "level"), [(0, 0.95), (7, 0.9), (20, 0.99)])
def test_wilson_interval_by_its_formula(right, level):
    z = scipy.stats.norm.ppf(0.5 + level / 2)
    share = right / 20
    centre = (share + z * z / 40) / (1 + z * z / 20)
    half = z * np.sqrt(share * (1 - share) / 20 + z * z / 1600) / (1 + z * z / 20)
    expected = (share, max(0, centre - half), min(1, centre + half))
    np.testing.assert_allclose(wilson_interval(right, 20, level), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("right", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_interval_refuses_what_are_no_counts(right, trials):
    with pytest.raises(UserError, match="wilson_interval"):
        wilson_interval(right, trials)


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_bootstrap_of_the_mean_is_near_the_t_interval(method):
    values = np.random.default_rng(0).normal(0.3, 0.2, 400)
    np.testing.assert_allclose(bootstrap_interval(values, method=method), mean_interval(values), atol=2e-3)
    assert bootstrap_interval(values, method=method) == bootstrap_interval(values, method=method)


def test_bootstrap_of_a_median_holds_it():
    interval = bootstrap_interval(np.random.default_rng(1).normal(size=201), np.median, resamples=2000)
    assert interval.low < interval.mean < interval.high


def test_bootstrap_covers_as_often_as_it_says():
    generator = np.random.default_rng(3)
    inside = [
        low <= 0.25 <= high
        for _, low, high in (
            bootstrap_interval(generator.binomial(4, 0.25, 128) / 4, resamples=500) for _ in range(400)
        )
    ]
    assert 0.92 <= np.mean(inside) <= 0.98


def test_bootstrap_without_spread_or_with_too_little_is_a_number():
    assert bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert bootstrap_interval([1.0]) == (1.0, 1.0, 1.0)
    assert np.isfinite(bootstrap_interval([0.0] * 9 + [1.0], np.median, resamples=200)).all()
    with pytest.raises(UserError, match="resamples is 0"):
        bootstrap_interval([0.1, 0.2], resamples=0)


@pytest.mark.parametrize("interval", [mean_interval, share_interval, bootstrap_interval])
def test_intervals_refuse_what_would_give_no_number(interval):
    for values in (np.array([]), np.array([0.5, np.nan]), np.array([[0.5]])):
        with pytest.raises(UserError, match="accepted is a non-empty vector of finite numbers"):
            interval(values)
    for level in (0.0, 1.0, 95.0):
        with pytest.raises(UserError, match="level is"):
            interval(np.array([0.1, 0.5]), level=level)
