"""Tests of difference against scipy, by hand, and by how often they cry wolf."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import paired_bootstrap, permutation_test, welch_t_test

SIGN = [0.738, 0.741, 0.729, 0.745, 0.733, 0.740, 0.736]
GROUP_MEAN = [0.284, 0.290, 0.275, 0.288, 0.281, 0.279, 0.291]


def test_least_p_of_seven_seeds():
    unpaired = permutation_test(SIGN, GROUP_MEAN)
    assert unpaired.p == unpaired.least_p == pytest.approx(2 / 3432)
    paired = permutation_test(SIGN, GROUP_MEAN, paired=True)
    assert paired.p == paired.least_p == pytest.approx(2 / 128)
    assert paired.difference == unpaired.difference == pytest.approx(np.mean(SIGN) - np.mean(GROUP_MEAN))


@pytest.mark.parametrize("paired", [False, True])
def test_permutation_p_by_brute_force(paired):
    """Values on a grid, so that many relabellings tie with the observed one."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        a, b = generator.integers(0, 5, (2, 5)) / 10 + 0.1
        if paired:
            signs = itertools.product((1, -1), repeat=5)
            means = np.array([np.mean(np.array(s) * (a - b)) for s in signs])
        else:
            pool = np.concatenate([a, b])
            splits = (list(chosen) for chosen in itertools.combinations(range(10), 5))
            means = np.array([2 * pool[s].mean() - 2 * pool.mean() for s in splits])
        observed = a.mean() - b.mean()
        tails = np.mean(means <= observed + 1e-9), np.mean(means >= observed - 1e-9)
        expected = min(1.0, 2 * min(tails))
        assert permutation_test(a, b, paired=paired).p == pytest.approx(expected), (a, b)


def test_permutation_test_of_equal_values_is_one():
    for paired in (False, True):
        assert permutation_test([0.5] * 3, [0.5] * 3, paired=paired).p == 1.0


def test_permutation_test_refuses_to_sample_unasked():
    values = np.random.default_rng(0).normal(size=(2, 30))
    with pytest.raises(UserError, match="relabellings, accepted are up to 1000000; give resamples"):
        permutation_test(*values)
    asked = permutation_test(*values, resamples=999)
    assert 2 / 1000 <= asked.p <= 1
    assert asked.least_p == 2 / 1000
    assert asked == permutation_test(*values, resamples=999)


def test_welch_against_scipy():
    result = welch_t_test(SIGN, GROUP_MEAN[:4], level=0.9)
    reference = scipy.stats.ttest_ind(SIGN, GROUP_MEAN[:4], equal_var=False)
    bounds = reference.confidence_interval(0.9)
    expected = (np.mean(SIGN) - np.mean(GROUP_MEAN[:4]), *bounds, reference.statistic, reference.df, reference.pvalue)
    np.testing.assert_allclose(result, expected, rtol=1e-10)


def test_welch_by_hand():
    """Means 2 and 5, variances 1 and 4, three each: t = -3 / sqrt(5 / 3), df = (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2)."""
    result = welch_t_test([1, 2, 3], [3, 5, 7])
    assert result.t == pytest.approx(-3 / math.sqrt(5 / 3))
    assert result.degrees_of_freedom == pytest.approx((25 / 9) / ((1 / 9) / 2 + (16 / 9) / 2))
    assert result.low < result.difference < result.high


def test_welch_without_spread_claims_nothing():
    for a, b in (([0.7, 0.7, 0.7], [0.3, 0.3, 0.3]), ([0.7, 0.7], [0.7, 0.7]), ([0.0, 0.0], [0.0, 0.0])):
        result = welch_t_test(a, b)
        assert (result.t, result.p, result.low, result.high) == (0.0, 1.0, -math.inf, math.inf)
    one_sided = welch_t_test([0.7, 0.7, 0.7], [0.3, 0.4, 0.35])
    assert one_sided.degrees_of_freedom == pytest.approx(2)
    assert np.isfinite(one_sided).all()


def test_paired_bootstrap_by_its_two_parts():
    generator = np.random.default_rng(0)
    a = generator.binomial(4, 0.5, 300) / 4
    b = np.clip(a - generator.binomial(1, 0.15, 300) / 4, 0, 1)
    result = paired_bootstrap(a, b)
    reference = scipy.stats.bootstrap((a - b,), np.mean, method="percentile", n_resamples=9999, rng=1)
    np.testing.assert_allclose(result[:3], (np.mean(a - b), *reference.confidence_interval), atol=1.5e-3)
    assert result.p == 1 / 10_001
    weak = paired_bootstrap(a, np.roll(a, 1))
    assert weak.difference == 0
    assert weak.p == 1.0
    assert paired_bootstrap(a, b) == result


def test_paired_bootstrap_without_spread():
    assert paired_bootstrap([0.5, 0.5], [0.5, 0.5]) == (0.0, 0.0, 0.0, 1.0)
    moved = paired_bootstrap([0.75, 0.5], [0.5, 0.25], resamples=99)
    assert moved == (0.25, 0.25, 0.25, 0.01)


def test_false_alarms_are_as_rare_as_promised():
    """No difference: p below 0.1 one time in ten."""
    generator = np.random.default_rng(5)
    ps = []
    for _ in range(200):
        a, b = generator.binomial(4, 0.3, (2, 60)) / 4
        x, y = generator.normal(size=(2, 5))
        ps.append((paired_bootstrap(a, b, resamples=400).p, permutation_test(x, y).p, welch_t_test(x, y).p))
    alarms = np.mean(np.array(ps) <= 0.1, 0)
    assert np.all((alarms > 0.03) & (alarms < 0.17)), alarms


@pytest.mark.parametrize("test", [paired_bootstrap, permutation_test, welch_t_test])
def test_what_is_no_sample_is_refused(test):
    for a, b, said in (([1.0], [1.0], r"a of .* has shape \(1,\)"), ([1.0, 2.0], [1.0, np.nan], "b of .* not finite")):
        with pytest.raises(UserError, match=said):
            test(a, b)
    if test is paired_bootstrap:
        with pytest.raises(UserError, match="a has 3 and b 2"):
            test([1, 2, 3], [1, 2])
