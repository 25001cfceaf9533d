"""Confidence intervals for accuracies, on the host in float64."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Num


class Interval(NamedTuple):
    """A mean with its two-sided confidence bounds."""

    mean: float
    low: float
    high: float


def mean_interval(values: Num[np.ndarray, " questions"], level: float = 0.95) -> Interval:
    """Student-t interval of the mean of independent values, such as each question's share of right samples.

    Questions are the unit: samples of one question are not independent draws, so they are averaged first.
    For gains, pass the per-question differences (a paired interval). With fewer than two values, or values
    without spread, the t interval has no width to offer: then the bounds are those of Wilson's score interval
    when the values are proportions in [0, 1], else minus and plus infinity.
    """
    # Imported here: floor 0 must not make `import rlvr_jax` slow.
    from scipy.special import ndtri, stdtrit

    values = np.asarray(values, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"mean_interval needs a non-empty vector, got shape {values.shape}")
    mean, count = float(values.mean()), values.size
    if count > 1 and values.std() > 0:
        half = float(stdtrit(count - 1, 0.5 + level / 2) * values.std(ddof=1) / np.sqrt(count))
        return Interval(mean, mean - half, mean + half)
    if not 0.0 <= mean <= 1.0:
        return Interval(mean, -np.inf, np.inf)
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    centre = (mean + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(z2 * (mean * (1 - mean) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return Interval(mean, max(0.0, float(centre - half)), min(1.0, float(centre + half)))
