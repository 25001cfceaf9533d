"""The law of prompt difficulty from counts: a Beta distribution of success rates, fitted by maximum likelihood."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.starvation.counts import Numbers, require_counts, require_group_size

Matrix = tuple[tuple[float, float], tuple[float, float]]

_UNKNOWN: Matrix = ((math.inf, 0.0), (0.0, math.inf))


@dataclasses.dataclass(frozen=True)
class BetaBinomial:
    """Success rates of prompts follow Beta(a, b), `a = mean * concentration`, `b = (1 - mean) * concentration`.

    Two edges are part of the family. Concentration infinity: all prompts are alike (a plain binomial; a and b are
    infinite). Concentration 0: each prompt is always right or always wrong (a and b are 0, degeneracy is 1).
    """

    mean: float
    """Mean success rate over prompts, a / (a + b)."""
    concentration: float
    """a + b: how alike the prompts are, from 0 to infinity."""
    covariance: Matrix
    """Of the estimates of (logit of the mean, log of the concentration): inverse of the observed information.
    Infinite variance: the likelihood has no curvature there, as at an edge."""
    log_likelihood: float
    """Nats, of all counts, binomial coefficients included."""

    @property
    def a(self) -> float:
        return self.mean * self.concentration if self.mean > 0 else 0.0

    @property
    def b(self) -> float:
        return (1 - self.mean) * self.concentration if self.mean < 1 else 0.0

    @property
    def overdispersion(self) -> float:
        """`1 / (1 + a + b)`, the correlation of two samples of one prompt: 0 if prompts are alike, 1 if all-or-none."""
        return 1 / (1 + self.concentration)

    @property
    def mean_error(self) -> float:
        return self.mean * (1 - self.mean) * math.sqrt(self.covariance[0][0]) if 0 < self.mean < 1 else math.inf

    @property
    def a_error(self) -> float:
        """Standard error of a; infinite at an edge, where there is none to give."""
        return math.inf if self._is_edge else self._error((self.a * (1 - self.mean), self.a))

    @property
    def b_error(self) -> float:
        """Standard error of b; infinite at an edge, where there is none to give."""
        return math.inf if self._is_edge else self._error((-self.b * self.mean, self.b))

    @property
    def _is_edge(self) -> bool:
        return self.mean in (0.0, 1.0) or self.concentration in (0.0, math.inf)

    def degeneracy(self, group_size: int) -> float:
        """Share of groups of G samples that are uniform; see `beta_binomial_degeneracy`."""
        return sum(self._uniform(group_size))

    def degeneracy_error(self, group_size: int) -> float:
        """Standard error of `degeneracy` (delta method).

        At the edge of like prompts it is that of the binomial, from the mean alone; at the other edges infinite: they
        were not seen to be left, which no curvature measures.
        """
        right, wrong = self._uniform(group_size)
        if self.concentration == 0 or self.mean in (0.0, 1.0):
            return math.inf
        drawn = np.arange(group_size)
        spread = drawn / self.concentration
        m, w = self.mean, 1 - self.mean
        slope_mean = right * np.sum(1 / (m + spread)) - wrong * np.sum(1 / (w + spread))
        # d/d(log concentration) = -spread * d/d(spread), for each factor (m + spread) / (1 + spread).
        of_total = np.sum(spread / (1 + spread))
        slope_log = right * (of_total - np.sum(spread / (m + spread)))
        slope_log += wrong * (of_total - np.sum(spread / (w + spread)))
        return self._error((float(slope_mean) * m * w, float(slope_log)))

    def _uniform(self, group_size: int) -> tuple[float, float]:
        """Probabilities that a group is all right, and all wrong."""
        require_group_size("BetaBinomial", group_size)
        if self.concentration == 0:
            return self.mean, 1 - self.mean
        spread = np.arange(group_size) / self.concentration
        right, wrong = (self.mean + spread) / (1 + spread), (1 - self.mean + spread) / (1 + spread)
        return float(np.prod(right)), float(np.prod(wrong))

    def _error(self, slope: tuple[float, float]) -> float:
        # Not a matrix product: a slope of zero in an unknown direction adds nothing.
        total = sum(
            slope[i] * slope[j] * self.covariance[i][j] for i in (0, 1) for j in (0, 1) if slope[i] != 0 != slope[j]
        )
        return math.sqrt(max(total, 0.0))


def fit_beta_binomial(n: Numbers, c: Numbers) -> BetaBinomial:
    """Maximum-likelihood Beta law of the success rates of prompts with n samples, c of them right, `[prompts]`.

    On the host in float64; n may differ between prompts. Edges, where the likelihood has no inner maximum:
      * counts spread no more than a binomial's: concentration infinity, the mean's error is the binomial's;
      * every prompt all right: mean 1; all wrong: mean 0; the concentration cannot be told, infinity stands for it;
      * every prompt uniform, both kinds present: concentration 0, degeneracy 1.

    Raises UserError for no prompt, for counts that are none, and when no prompt has two samples: one sample of each
    tells nothing of how prompts differ.
    Source: Griffiths 1973 (Biometrics 29), in the form of Smith 1983 (Applied Statistics 32, AS 189).
    """
    require_counts("fit_beta_binomial", n, c)
    n, c = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(c, np.int64))
    n, c = n.ravel(), c.ravel()
    if n.size == 0 or n.max() < 2:
        held = "no prompt" if n.size == 0 else "one sample of each prompt"
        raise UserError(f"n of fit_beta_binomial holds {held}, accepted is at least one prompt with two samples")
    tails = _Tails.of(n, c)
    mean = float(c.sum() / n.sum())
    if mean in (0.0, 1.0):
        return BetaBinomial(mean, math.inf, _UNKNOWN, 0.0)
    if np.all((c == 0) | (c == n)):
        share = float(np.mean(c == n))
        likelihood = n.size * (share * math.log(share) + (1 - share) * math.log(1 - share))
        return BetaBinomial(share, 0.0, ((1 / (n.size * share * (1 - share)), 0.0), (0.0, math.inf)), likelihood)
    return _interior(tails, mean, int(n.sum()), _log_coefficients(n, c))


class _Tails(NamedTuple):
    """How many prompts have more than i right, more than i wrong, more than i samples: all that the likelihood needs.

    `log L = sum_i right_i log(m + i s) + wrong_i log(1 - m + i s) - total_i log(1 + i s)`, with the mean m and the
    spread `s = 1 / concentration`. No Beta function, so nothing cancels near the binomial, s = 0.
    """

    right: np.ndarray
    wrong: np.ndarray
    total: np.ndarray

    @classmethod
    def of(cls, n: np.ndarray, c: np.ndarray) -> "_Tails":
        def tail(counts: np.ndarray) -> np.ndarray:
            return np.cumsum(np.bincount(counts, minlength=n.max() + 1)[::-1])[::-1][1:].astype(np.float64)

        return cls(tail(c), tail(n - c), tail(n))

    def value(self, m: float, s: float) -> float:
        i = np.arange(self.total.size)
        terms = self.right * np.log(m + i * s), self.wrong * np.log(1 - m + i * s), self.total * np.log1p(i * s)
        return float(np.sum(terms[0] + terms[1] - terms[2]))

    def slopes(self, m: float, s: float) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian in (m, s)."""
        i = np.arange(self.total.size)
        right, wrong, total = 1 / (m + i * s), 1 / (1 - m + i * s), 1 / (1 + i * s)
        r1, w1, t1 = self.right * right, self.wrong * wrong, self.total * total
        r2, w2, t2 = r1 * right, w1 * wrong, t1 * total
        gradient = np.array([np.sum(r1 - w1), np.sum(i * (r1 + w1 - t1))])
        cross = -np.sum(i * (r2 - w2))
        hessian = np.array([[-np.sum(r2 + w2), cross], [cross, -np.sum(i * i * (r2 + w2 - t2))]])
        return gradient, hessian


def _interior(tails: _Tails, mean: float, samples: int, coefficients: float) -> BetaBinomial:
    """The maximum in (logit mean, log spread) from the best of a few starts, or the binomial where none is better."""
    from scipy.optimize import minimize
    from scipy.special import expit, logit

    def loss(x: np.ndarray | tuple) -> tuple[float, np.ndarray]:
        m, s = float(expit(x[0])), float(np.exp(x[1]))
        gradient, _ = tails.slopes(m, s)
        return -tails.value(m, s) / samples, -gradient * (m * (1 - m), s) / samples

    bounds = ((-30.0, 30.0), (-25.0, 25.0))
    options = {"ftol": 1e-15, "gtol": 1e-11, "maxiter": 1000}
    start = min(((logit(mean), log_spread) for log_spread in (-5.0, -2.0, 0.0, 3.0)), key=lambda x: loss(x)[0])
    x = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    m, s = float(expit(x[0])), float(np.exp(x[1]))
    binomial = tails.value(mean, 0.0)
    if tails.value(m, s) <= binomial + 1e-9 * abs(binomial):
        covariance = ((1 / (samples * mean * (1 - mean)), 0.0), (0.0, math.inf))
        return BetaBinomial(mean, math.inf, covariance, binomial + coefficients)
    _, hessian = tails.slopes(m, s)
    # At the maximum the gradient vanishes, so a change of coordinates scales the Hessian alone.
    scale = np.array([m * (1 - m), -s])
    information = -hessian * np.outer(scale, scale)
    determinant = float(np.linalg.det(information))
    covariance = np.linalg.inv(information).tolist() if determinant > 0 and information[0, 0] > 0 else _UNKNOWN
    return BetaBinomial(m, 1 / s, tuple(map(tuple, covariance)), tails.value(m, s) + coefficients)


def _log_coefficients(n: np.ndarray, c: np.ndarray) -> float:
    from scipy.special import gammaln

    return float(np.sum(gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1)))
