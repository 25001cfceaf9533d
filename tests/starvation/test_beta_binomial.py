"""The fit against scipy's own likelihood and simulation, and its edges."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import BetaBinomial, beta_binomial_degeneracy, fit_beta_binomial


def log_likelihood(n, c, a, b):
    return float(scipy.stats.betabinom.logpmf(c, n, a, b).sum())


def simulate(seed, prompts, n, a=0.205, b=0.615):
    generator = np.random.default_rng(seed)
    n = np.broadcast_to(n, prompts)
    return n, generator.binomial(n, generator.beta(a, b, prompts))


@pytest.mark.parametrize(("a", "b", "most"), [(0.205, 0.615, 8), (2.0, 5.0, 64), (0.02, 0.01, 16), (30.0, 60.0, 200)])
def test_fit_is_the_maximum_that_scipy_finds(a, b, most):
    n = np.random.default_rng(0).integers(1, most + 1, 600)
    n, c = simulate(1, 600, n, a, b)
    fit = fit_beta_binomial(n, c)
    assert fit.log_likelihood == pytest.approx(log_likelihood(n, c, fit.a, fit.b), rel=1e-9)
    reference = scipy.optimize.minimize(
        lambda x: -log_likelihood(n, c, *np.exp(x)),
        np.log([a, b]),
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-9, "maxiter": 4000},
    )
    np.testing.assert_allclose((fit.a, fit.b), np.exp(reference.x), rtol=1e-4)
    np.testing.assert_allclose(fit.log_likelihood, -reference.fun, atol=1e-6)


def test_errors_are_the_curvature_of_scipys_likelihood():
    n, c = simulate(2, 500, 8)
    fit = fit_beta_binomial(n, c)
    at, step = np.array([fit.a, fit.b]), 1e-4

    def value(i, j):
        return log_likelihood(n, c, *(at + step * np.array([i, j])))

    aa = (value(1, 0) - 2 * value(0, 0) + value(-1, 0)) / step**2
    bb = (value(0, 1) - 2 * value(0, 0) + value(0, -1)) / step**2
    ab = (value(1, 1) - value(1, -1) - value(-1, 1) + value(-1, -1)) / (4 * step**2)
    covariance = np.linalg.inv(-np.array([[aa, ab], [ab, bb]]))
    np.testing.assert_allclose((fit.a_error, fit.b_error), np.sqrt(np.diag(covariance)), rtol=1e-3)

    def degeneracy(a, b):
        dist = scipy.stats.betabinom(4, a, b)
        return dist.pmf(0) + dist.pmf(4)

    slope = [
        (degeneracy(fit.a + step, fit.b) - degeneracy(fit.a - step, fit.b)) / (2 * step),
        (degeneracy(fit.a, fit.b + step) - degeneracy(fit.a, fit.b - step)) / (2 * step),
    ]
    np.testing.assert_allclose(fit.degeneracy(4), degeneracy(fit.a, fit.b), rtol=1e-10)
    np.testing.assert_allclose(fit.degeneracy_error(4), np.sqrt(slope @ covariance @ slope), rtol=1e-3)
    mean_slope = np.array([fit.b, -fit.a]) / fit.concentration**2
    np.testing.assert_allclose(fit.mean_error, np.sqrt(mean_slope @ covariance @ mean_slope), rtol=1e-3)


def test_intervals_of_the_fit_cover_the_truth():
    """100 logs of 200 prompts: two standard errors hold the true degeneracy and mean about 95 times in 100."""
    truth = float(beta_binomial_degeneracy(0.205, 0.615, 4))
    scores = []
    for seed in range(100):
        fit = fit_beta_binomial(*simulate(seed, 200, 8))
        scores.append(((fit.degeneracy(4) - truth) / fit.degeneracy_error(4), (fit.mean - 0.25) / fit.mean_error))
    inside = (np.abs(scores) < 1.96).mean(0)
    assert np.all(inside > 0.88), inside


def test_counts_without_overdispersion_give_the_binomial():
    n, c = np.full(20, 10), np.full(20, 3)
    fit = fit_beta_binomial(n, c)
    assert (fit.mean, fit.concentration, fit.a, fit.b) == (0.3, math.inf, math.inf, math.inf)
    assert fit.overdispersion == 0
    assert fit.degeneracy(4) == pytest.approx(0.3**4 + 0.7**4)
    assert fit.log_likelihood == pytest.approx(scipy.stats.binom.logpmf(c, n, 0.3).sum())
    assert fit.mean_error == pytest.approx(math.sqrt(0.3 * 0.7 / 200))
    assert fit.degeneracy_error(4) == pytest.approx(abs(4 * 0.3**3 - 4 * 0.7**3) * fit.mean_error)
    assert fit.a_error == fit.b_error == math.inf


def test_binomial_counts_are_never_far_from_the_binomial():
    for seed in range(8):
        generator = np.random.default_rng(seed)
        n = generator.integers(2, 12, 300)
        fit = fit_beta_binomial(n, generator.binomial(n, 0.4))
        assert fit.concentration > 20
        assert fit.degeneracy(4) == pytest.approx(0.4**4 + 0.6**4, abs=0.03)
        assert math.isfinite(fit.degeneracy_error(4))


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_all_prompts_alike_and_uniform(right):
    fit = fit_beta_binomial([4, 6], [4 * int(right), 6 * int(right)])
    assert (fit.mean, fit.concentration, fit.log_likelihood) == (right, math.inf, 0.0)
    assert fit.degeneracy(4) == 1.0
    assert fit.degeneracy_error(4) == fit.a_error == fit.b_error == fit.mean_error == math.inf


def test_uniform_groups_of_both_kinds():
    fit = fit_beta_binomial([4, 4, 8, 1], [4, 0, 0, 0])
    assert (fit.mean, fit.concentration, fit.a, fit.b, fit.overdispersion) == (0.25, 0.0, 0.0, 0.0, 1.0)
    assert fit.degeneracy(4) == fit.degeneracy(64) == 1.0
    assert fit.log_likelihood == pytest.approx(math.log(0.25) + 3 * math.log(0.75))
    assert fit.log_likelihood > log_likelihood([4, 4, 8, 1], [4, 0, 0, 0], 0.25e-3, 0.75e-3)
    assert fit.degeneracy_error(4) == fit.a_error == math.inf
    assert fit.mean_error == pytest.approx(math.sqrt(0.25 * 0.75 / 4))


def test_one_mixed_group_suffices_for_a_fit():
    for c in ([1], [1, 0, 0], [4, 4, 3]):
        fit = fit_beta_binomial(4, c)
        assert 0 < fit.mean < 1
        assert 0 <= fit.degeneracy(4) <= 1


def test_long_logs_of_many_samples():
    n, c = simulate(3, 200, 10_000, 0.5, 2.0)
    fit = fit_beta_binomial(n, c)
    assert abs(fit.a - 0.5) < 4 * fit.a_error
    assert fit.log_likelihood == pytest.approx(log_likelihood(n, c, fit.a, fit.b), rel=1e-7)


@pytest.mark.parametrize(
    ("n", "c", "said"),
    [
        ([1, 1, 1], [0, 1, 0], "one sample of each prompt"),
        ([], [], "no prompt"),
        ([4, 4], [2, 5], r"c of fit_beta_binomial is 5 at \[1\]"),
        ([4, 0], [2, 0], r"n of fit_beta_binomial is 0 at \[1\]"),
    ],
)
def test_fit_refuses(n, c, said):
    with pytest.raises(UserError, match=said):
        fit_beta_binomial(n, c)


def test_degeneracy_of_the_record_is_the_closed_form():
    law = BetaBinomial(0.25, 0.82, ((0.1, 0.0), (0.0, 0.1)), 0.0)
    assert (law.a, law.b) == pytest.approx((0.205, 0.615))
    for group_size in (1, 2, 4, 32):
        assert law.degeneracy(group_size) == pytest.approx(
            float(beta_binomial_degeneracy(law.a, law.b, group_size)), rel=1e-5
        )
