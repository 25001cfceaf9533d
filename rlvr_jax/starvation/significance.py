"""Whether two methods differ: by question, or by seed. On the host in float64.

Two runs on the same questions: `paired_bootstrap`. A few seeds of each method: `permutation_test`, which assumes
nothing but cannot go below a least p, and `welch_t_test`, which can and assumes that seeds scatter normally.
"""

import math
import warnings
from typing import NamedTuple

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.starvation.counts import Numbers
from rlvr_jax.starvation.intervals import bootstrap_means, require_level

_MOST_RELABELLINGS = 1_000_000


class PairedBootstrap(NamedTuple):
    """Mean difference over questions with its bounds, and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p: float


class PermutationTest(NamedTuple):
    """Difference of means and its two-sided p-value."""

    difference: float
    p: float
    least_p: float
    """No data of these sizes can give less."""


class WelchTest(NamedTuple):
    """Difference of means with its bounds, and Welch's test of no difference (two-sided)."""

    difference: float
    low: float
    high: float
    t: float
    degrees_of_freedom: float
    p: float


def paired_bootstrap(
    a: Numbers, b: Numbers, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> PairedBootstrap:
    """Mean of `a - b` over questions, `[questions]` each: percentile bounds and p from resampled questions.

    p is the share of resamples whose mean strays from the observed one at least as far as that is from zero, with the
    observed one counted among them: at least 1 / (resamples + 1). Differences that are all equal have no spread to
    resample: the bounds close on the difference, and p is 1 if it is zero.

    Raises UserError for vectors of different length, fewer than two questions, values that are not finite, a level
    outside (0, 1) and no resample.
    Source: Efron and Tibshirani 1993, chapters 13 and 16.
    """
    require_level(level, resamples)
    a, b = _sample("paired_bootstrap", "a", a), _sample("paired_bootstrap", "b", b)
    _require_pairs("paired_bootstrap", a, b)
    differences = a - b
    difference = float(differences.mean())
    means = bootstrap_means(differences, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    # A hair of tolerance: means of the same values in another order differ by rounding.
    far = np.abs(means - difference) >= abs(difference) * (1 - 1e-9)
    return PairedBootstrap(difference, float(low), float(high), float((1 + far.sum()) / (1 + resamples)))


def permutation_test(
    a: Numbers, b: Numbers, *, paired: bool = False, resamples: int | None = None, seed: int = 0
) -> PermutationTest:
    """Exact test that labels do not matter, over all relabellings of the values (one value a seed).

    p is twice the smaller tail, at most 1; the observed labels are among those counted.

    Unpaired, every choice of which values are called `a`: 7 against 7 have 3432, so p is at least 2 / 3432 = 0.0006.
    Paired (the same seeds, in order), every choice of signs of the differences: 7 pairs have 128, so p is at least
    2 / 128 = 0.016, whatever the effect; 5 pairs cannot reach 0.05.

    More than a million relabellings are refused unless `resamples` says how many to draw at random instead.
    Raises UserError for that, for pairs of different number, fewer than two values, and values that are not finite.
    """
    from scipy.stats import permutation_test as scipy_permutation_test

    a, b = _sample("permutation_test", "a", a), _sample("permutation_test", "b", b)
    if paired:
        _require_pairs("permutation_test", a, b)
    relabellings = 2**a.size if paired else math.comb(a.size + b.size, a.size)
    if resamples is None and relabellings > _MOST_RELABELLINGS:
        raise UserError(
            f"permutation_test of {a.size} against {b.size} values has {relabellings} relabellings, accepted are up to "
            f"{_MOST_RELABELLINGS}; give resamples to draw some at random"
        )
    if resamples is not None:
        require_level(0.95, resamples)
    exact = resamples is None or resamples >= relabellings

    def mean_difference(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray | np.float64:
        # Rounded: sums of the same values in another order must tie.
        return np.round(np.mean(x, axis) - np.mean(y, axis), 12)

    scale = max(np.abs(a).max(), np.abs(b).max()) or 1.0
    result = scipy_permutation_test(
        (a / scale, b / scale),
        mean_difference,
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=np.inf if exact else resamples,
        batch=10_000,
        rng=np.random.default_rng(seed),
    )
    least = min(1.0, 2 / (relabellings if exact else resamples + 1))
    return PermutationTest(float(a.mean() - b.mean()), float(result.pvalue), least)


def welch_t_test(a: Numbers, b: Numbers, *, level: float = 0.95) -> WelchTest:
    """Welch's t-test of unequal variances between independent values of two methods (one value a seed).

    Where neither has any spread, t is not defined and nothing is claimed: t 0, p 1, infinite bounds.
    Raises UserError for fewer than two values of either, values that are not finite and a level outside (0, 1).
    """
    from scipy.stats import ttest_ind

    require_level(level)
    a, b = _sample("welch_t_test", "a", a), _sample("welch_t_test", "b", b)
    difference = float(a.mean() - b.mean())
    # Equal values may have a standard deviation of a rounding error.
    if all(np.ptp(x) <= 1e-12 * np.abs(x).max() for x in (a, b)):
        return WelchTest(difference, -math.inf, math.inf, 0.0, float(a.size + b.size - 2), 1.0)
    with warnings.catch_warnings():
        # One sample without spread is fine, but scipy warns of its variance.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        result = ttest_ind(a, b, equal_var=False)
        low, high = result.confidence_interval(level)
    return WelchTest(
        difference, float(low), float(high), float(result.statistic), float(result.df), float(result.pvalue)
    )


def _sample(name: str, which: str, values: Numbers) -> np.ndarray:
    values = np.asarray(values, np.float64)
    is_vector = values.ndim == 1 and values.size > 1
    if not is_vector or not np.isfinite(values).all():
        shown = "holds a value that is not finite" if is_vector else f"has shape {values.shape}"
        raise UserError(f"{which} of {name} {shown}, accepted is a vector of two or more finite numbers")
    return values


def _require_pairs(name: str, a: np.ndarray, b: np.ndarray) -> None:
    if a.size != b.size:
        raise UserError(f"{name} pairs values: a has {a.size} and b {b.size}, accepted is the same number")
