"""Confidence intervals for accuracies, on the host in float64."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from rlvr_jax.errors import UserError
from rlvr_jax.starvation.counts import Numbers, require_counts


class Interval(NamedTuple):
    """A mean with its two-sided confidence bounds."""

    mean: float
    low: float
    high: float


def share_interval(shares: Numbers, level: float = 0.95, weights: Numbers | None = None) -> Interval:
    """Interval of an accuracy from each question's share of right samples, `[questions]`; never leaves [0, 1].

    Questions are the unit: samples of one question are not independent draws, so they are averaged first. Wilson's
    score interval with the number of independent draws that would spread as these shares do (a design effect);
    with one sample per question that number is the number of questions.
    Where questions have unequal numbers of samples, these are the `weights`, `[questions]`: the mean is the share of
    all samples, and the spread that of such a ratio of sums, to first order (Cochran 1977, chapter 6).
    Raises UserError for an empty vector, a value outside [0, 1], a level outside (0, 1), and weights of another shape,
    below 0 or all 0.
    """
    # Imported here: floor 0 must not make `import rlvr_jax` slow.
    from scipy.special import ndtri

    require_level(level)
    shares = _vector(shares)
    if shares.min() < 0 or shares.max() > 1:
        raise UserError(f"shares lie in [0, 1], got {shares.min()} to {shares.max()}")
    weights = np.ones(shares.size) if weights is None else _vector(weights)
    if weights.shape != shares.shape or weights.min() < 0 or weights.max() == 0:
        raise UserError(f"weights are {weights}, accepted are {shares.size} numbers from 0, not all of them 0")
    mean = float(np.average(shares, weights=weights))
    weights = weights / weights.mean()
    variance = float(np.square(weights * (shares - mean)).mean())
    # Equal shares, up to rounding, say nothing of the spread: then each question counts as one draw, by its weight.
    alike = shares.size / float(np.square(weights).mean())
    draws = shares.size * mean * (1 - mean) / variance if variance > 1e-12 else alike
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    centre = (mean + z2 / (2 * draws)) / (1 + z2 / draws)
    half = np.sqrt(z2 * (mean * (1 - mean) / draws + z2 / (4 * draws**2))) / (1 + z2 / draws)
    return Interval(mean, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def mean_interval(values: Numbers, level: float = 0.95) -> Interval:
    """Student-t interval of the mean of independent values `[questions]`, such as paired differences (a gain).

    With fewer than two values, or values without spread, the t interval has no width to offer. Differences of shares
    lie in [-1, 1], so then the bounds are those of `share_interval` stretched to it; for other values they are
    minus and plus infinity.
    Raises UserError for an empty vector, values that are not finite and a level outside (0, 1).
    """
    from scipy.special import stdtrit

    require_level(level)
    values = _vector(values)
    mean, count = float(values.mean()), values.size
    if count > 1 and np.ptp(values) > 0:
        half = float(stdtrit(count - 1, 0.5 + level / 2) * values.std(ddof=1) / np.sqrt(count))
        return Interval(mean, mean - half, mean + half)
    if not -1.0 <= mean <= 1.0:
        return Interval(mean, -np.inf, np.inf)
    _, low, high = share_interval((values + 1) / 2, level)
    return Interval(mean, 2 * low - 1, 2 * high - 1)


def wilson_interval(successes: int | np.integer, trials: int | np.integer, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share, from independent trials with two outcomes.

    Raises UserError for successes outside 0..trials, no trial and a level outside (0, 1).
    """
    from scipy.stats import binomtest

    require_level(level)
    require_counts("wilson_interval (trials n, successes c)", trials, successes)
    low, high = binomtest(int(successes), int(trials)).proportion_ci(level, method="wilson")
    return Interval(int(successes) / int(trials), float(low), float(high))


def bootstrap_interval(
    values: Numbers,
    statistic: Callable[..., Any] = np.mean,
    *,
    level: float = 0.95,
    method: Literal["BCa", "percentile"] = "BCa",
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of a statistic of one value per question, `[questions]`.

    `statistic(values, axis)` or `statistic(values)`, as `numpy.mean`. `method` is bias-corrected and accelerated, or
    plain percentiles; where the correction is not defined (too little spread) the percentiles stand in. Equal values
    have no spread to resample: both bounds are the statistic. `Interval.mean` holds the statistic of all values.

    Raises UserError for an empty vector, values that are not finite, a level outside (0, 1) and no resample.
    Source: Efron and Tibshirani 1993, chapters 13 and 14.
    """
    from scipy.stats import bootstrap

    require_level(level, resamples)
    values = _vector(values)
    centre = float(statistic(values))
    if np.ptp(values) == 0:
        return Interval(centre, centre, centre)
    for choice in dict.fromkeys((method, "percentile")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Degenerate resamples: seen below, by what they give.
            low, high = bootstrap(
                (values,),
                statistic,
                n_resamples=resamples,
                batch=_batch(values.size),
                confidence_level=level,
                method=choice,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite(low) and np.isfinite(high):
            break
    return Interval(centre, float(low), float(high))


def bootstrap_means(
    values: Float[np.ndarray, " questions"], resamples: int, seed: int
) -> Float[np.ndarray, " resamples"]:
    """Means of `resamples` draws of all questions with replacement."""
    generator = np.random.default_rng(seed)
    batch = _batch(values.size)
    sizes = [min(batch, resamples - start) for start in range(0, resamples, batch)]
    return np.concatenate([values[generator.integers(values.size, size=(m, values.size))].mean(-1) for m in sizes])


def require_level(level: float, resamples: int = 1) -> None:
    """Raises UserError for a confidence level outside (0, 1), and for no resample."""
    if not 0 < level < 1:
        raise UserError(f"level is {level}, accepted are values between 0 and 1, such as 0.95")
    if resamples < 1:
        raise UserError(f"resamples is {resamples}, accepted are 1 and more")


def _batch(questions: int) -> int:
    """Resamples that are held at once: 8 MB of them."""
    return max(1, 1_000_000 // questions)


def _vector(values: Numbers) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        infinite = "" if np.isfinite(values).all() else " with values that are not finite"
        raise UserError(f"values have shape {values.shape}{infinite}, accepted is a non-empty vector of finite numbers")
    return values
