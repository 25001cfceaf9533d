"""Confidence intervals for accuracies, on the host in float64."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Num


class Interval(NamedTuple):
    """A mean with its two-sided confidence bounds."""

    mean: float
    low: float
    high: float


def share_interval(
    shares: Num[np.ndarray, " questions"] | Bool[np.ndarray, " questions"], level: float = 0.95
) -> Interval:
    """Interval of an accuracy from each question's share of right samples, in [0, 1]; never leaves [0, 1].

    Questions are the unit: samples of one question are not independent draws, so they are averaged first. Wilson's
    score interval with the number of independent draws that would spread as these shares do (a design effect);
    with one sample per question that number is the number of questions.
    Raises ValueError for an empty vector or a value outside [0, 1].
    """
    # Imported here: floor 0 must not make `import rlvr_jax` slow.
    from scipy.special import ndtri

    shares = _vector(shares)
    if shares.min() < 0 or shares.max() > 1:
        raise ValueError(f"shares lie in [0, 1], got {shares.min()} to {shares.max()}")
    mean, variance = float(shares.mean()), float(shares.var())
    # Equal shares, up to rounding, say nothing of the spread: then each question counts as one draw.
    draws = shares.size * mean * (1 - mean) / variance if variance > 1e-12 else float(shares.size)
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    centre = (mean + z2 / (2 * draws)) / (1 + z2 / draws)
    half = np.sqrt(z2 * (mean * (1 - mean) / draws + z2 / (4 * draws**2))) / (1 + z2 / draws)
    return Interval(mean, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def mean_interval(values: Num[np.ndarray, " questions"], level: float = 0.95) -> Interval:
    """Student-t interval of the mean of independent values, such as per-question differences (a paired gain).

    With fewer than two values, or values without spread, the t interval has no width to offer. Differences of shares
    lie in [-1, 1], so then the bounds are those of `share_interval` stretched to it; for other values they are
    minus and plus infinity.
    Raises ValueError for an empty vector.
    """
    from scipy.special import stdtrit

    values = _vector(values)
    mean, count = float(values.mean()), values.size
    if count > 1 and values.std() > 0:
        half = float(stdtrit(count - 1, 0.5 + level / 2) * values.std(ddof=1) / np.sqrt(count))
        return Interval(mean, mean - half, mean + half)
    if not -1.0 <= mean <= 1.0:
        return Interval(mean, -np.inf, np.inf)
    _, low, high = share_interval((values + 1) / 2, level)
    return Interval(mean, 2 * low - 1, 2 * high - 1)


def _vector(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"an interval needs a non-empty vector, got shape {values.shape}")
    return values
