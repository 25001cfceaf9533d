"""Degeneracy and intervals against closed forms and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rlvr_jax import (
    bernoulli_prediction,
    degeneracy,
    group_mean,
    mean_interval,
    share_interval,
    sign,
    zero_advantage_share,
)


@pytest.mark.parametrize(("p", "expected"), [(0.1, 0.6562), (0.25, 0.3203), (0.5, 0.125), (0.7, 0.2482), (0.9, 0.6562)])
def test_prediction_at_group_size_four(p, expected):
    np.testing.assert_allclose(bernoulli_prediction(jnp.array(p), 4), expected, atol=6e-5)


def test_shares_by_hand():
    rewards = jnp.array([[0, 0], [1, 1], [1, 0], [0, 0]])
    shares = degeneracy(rewards)
    assert [float(x) for x in shares] == pytest.approx([0.5, 0.25, 0.75, 0.375**2 + 0.625**2])


def test_heterogeneous_prompts_exceed_the_prediction():
    """Beta(0.205, 0.615) has mean 0.25 and gives degeneracy 0.6925 at G = 4, against 0.32 predicted."""
    key_p, key_r = jax.random.split(jax.random.key(0))
    p = jax.random.beta(key_p, 0.205, 0.615, (20000, 1))
    shares = degeneracy(jax.random.bernoulli(key_r, p, (20000, 4)).astype(jnp.float32))
    np.testing.assert_allclose(shares.observed, 0.6925, atol=0.012)
    np.testing.assert_allclose(shares.predicted, 0.3203, atol=0.015)


def test_wasted_samples_are_those_of_zero_advantage_groups():
    rewards = jnp.array([[0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 0]])
    assert float(zero_advantage_share(group_mean(rewards))) == 0.5
    assert float(zero_advantage_share(sign(rewards))) == 0.0


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
