"""Degeneracy of unequal prompts against exact fractions, scipy and simulation."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import beta_binomial_degeneracy, degeneracy_at, jensen_gap


@pytest.mark.parametrize("group_size", [2, 3, 4, 7, 12])
def test_jensen_gap_is_the_sum_over_moments(group_size):
    rates = np.random.default_rng(0).beta(0.4, 0.9, (3, 50)).astype(np.float32)
    gap = jensen_gap(rates, group_size)
    exact = rates.astype(np.float64)
    mean = exact.mean(-1)
    degenerate = (exact**group_size + (1 - exact) ** group_size).mean(-1)
    predicted = mean**group_size + (1 - mean) ** group_size
    np.testing.assert_allclose(gap.degenerate, degenerate, rtol=1e-5)
    np.testing.assert_allclose(gap.predicted, predicted, rtol=1e-5)
    np.testing.assert_allclose(gap.gap, degenerate - predicted, atol=1e-6)
    assert gap.by_moment.shape == (3, group_size - 1)
    np.testing.assert_allclose(gap.by_moment.sum(-1), degenerate - predicted, atol=3e-5)


def test_jensen_gap_of_small_groups_is_variance():
    rates = np.array([0.1, 0.2, 0.9], np.float32)
    np.testing.assert_allclose(jensen_gap(rates, 2).by_moment, [2 * rates.var()], rtol=1e-5)
    np.testing.assert_allclose(jensen_gap(rates, 3).gap, 3 * rates.var(), rtol=1e-5)
    np.testing.assert_allclose(jensen_gap(rates, 3).by_moment, [3 * rates.var(), 0], atol=1e-6)


def test_jensen_gap_of_equal_prompts_is_zero_and_its_gradient_finite():
    gap = jax.jit(jensen_gap, static_argnums=1)([0.25] * 4, 4)
    np.testing.assert_allclose(gap.gap, 0, atol=1e-7)
    np.testing.assert_array_equal(gap.by_moment, np.zeros(3))
    for rates in ([0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.3, 0.3]):
        for field in ("gap", "by_moment"):
            gradient = jax.grad(lambda p, field=field: getattr(jensen_gap(p, 4), field).sum())(jnp.array(rates))
            assert bool(jnp.isfinite(gradient).all())


@pytest.mark.parametrize(
    ("rates", "group_size", "said"),
    [([0.2, 1.5], 4, r"1.5 at \[1\]"), ([np.nan], 4, "nan"), ([0.5], 1, "from 2 to 128"), ([], 4, r"shape \(0,\)")],
)
def test_jensen_gap_refuses(rates, group_size, said):
    with pytest.raises(UserError, match=said):
        jensen_gap(rates, group_size)


@pytest.mark.parametrize(("n", "group_size"), [(4, 4), (8, 3), (16, 16), (100, 64), (10_000, 4), (10_000, 500)])
def test_degeneracy_at_against_exact_fractions(n, group_size):
    rights = sorted({0, 1, 2, n // 3, n // 2, n - 2, n - 1, n})
    expected = [
        float(Fraction(math.comb(c, group_size) + math.comb(n - c, group_size), math.comb(n, group_size)))
        for c in rights
    ]
    np.testing.assert_allclose(degeneracy_at(n, np.array(rights), group_size), expected, rtol=1e-4, atol=1e-12)


def test_degeneracy_at_is_unbiased():
    """A million prompts of one success rate, 6 samples each: the mean estimate is p^4 + (1 - p)^4."""
    right = np.random.default_rng(0).binomial(6, 0.3, 1_000_000)
    values = np.asarray(degeneracy_at(6, right, 4), np.float64)
    exact = 0.3**4 + 0.7**4
    assert abs(values.mean() - exact) < 4 * values.std() / 1000
    plugged = (right / 6) ** 4 + (1 - right / 6) ** 4
    assert plugged.mean() - exact > 40 * plugged.std() / 1000, "what plugging in would be off"


def test_degeneracy_at_refuses_too_few_samples():
    with pytest.raises(UserError, match=r"n of degeneracy_at is 3 at \[1\], accepted are whole numbers from 4: an est"):
        degeneracy_at([4, 3], [0, 1], 4)
    for n, c in ((4, 5), (4, -1), (4, 1.5), (np.nan, 1), ([4, 4], [1, 1, 1])):
        with pytest.raises(UserError, match="degeneracy_at"):
            degeneracy_at(n, c, 2)
    inside = jax.jit(degeneracy_at, static_argnums=2)(jnp.array([4, 3]), jnp.array([0, 0]), 4)
    np.testing.assert_array_equal(inside, [1.0, np.nan])


@pytest.mark.parametrize("group_size", [1, 2, 4, 8, 64])
def test_beta_binomial_degeneracy_against_scipy(group_size):
    a, b = np.array([0.205, 1.0, 3.0, 2e4, 1e-3]), np.array([0.615, 1.0, 0.2, 3e4, 2e-3])
    betaln = scipy.special.betaln
    expected = np.exp(betaln(a + group_size, b) - betaln(a, b)) + np.exp(betaln(a, b + group_size) - betaln(a, b))
    np.testing.assert_allclose(beta_binomial_degeneracy(a, b, group_size), expected, rtol=2e-5)
    slopes = jax.grad(lambda a, b: beta_binomial_degeneracy(a, b, group_size), (0, 1))(1e-3, 50.0)
    assert np.isfinite(slopes).all()


def test_beta_binomial_degeneracy_against_a_million_groups():
    generator = np.random.default_rng(1)
    right = generator.binomial(4, generator.beta(0.205, 0.615, 1_000_000))
    uniform = (right == 0) | (right == 4)
    value = float(beta_binomial_degeneracy(0.205, 0.615, 4))
    assert value == pytest.approx(0.6926, abs=5e-5)
    assert abs(uniform.mean() - value) < 4 * uniform.std() / 1000
    pooled = right.mean() / 4
    assert pooled**4 + (1 - pooled) ** 4 == pytest.approx(0.3203, abs=3e-3)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (1.0, -1.0), (np.inf, 1.0), (np.nan, 1.0)])
def test_beta_binomial_degeneracy_refuses(a, b):
    with pytest.raises(UserError, match="finite positive"):
        beta_binomial_degeneracy(a, b, 4)
