"""What more samples buy: pass@k, majority vote, and the k at which a base model reaches a trained one."""

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from rlvr_jax.errors import UserError
from rlvr_jax.starvation.counts import Numbers, require_counts
from rlvr_jax.starvation.intervals import require_level

Ties = Literal["random", "wrong", "right"]


def pass_at_k(*, n: Numbers, c: Numbers, k: Numbers) -> Float[np.ndarray, "..."]:
    """Unbiased estimate of the chance that at least one of k samples is right, from n samples with c right.

    `1 - C(n - c, k) / C(n, k)` on the host in float64, for each question; its mean over questions is pass@k. The
    three broadcast. Absolute error below 1e-10 up to n = 10000.

    Raises UserError for c outside 0..n and k outside 1..n.
    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1.
    """
    from scipy.special import gammaln

    require_counts("pass_at_k", n, c)
    _require_k("pass_at_k", k, n)
    n, c, k = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (n, c, k)))
    wrong = n - c
    # With fewer than k wrong samples every draw of k holds a right one.
    drawn = np.minimum(k, wrong)
    log_miss = gammaln(wrong + 1) - gammaln(wrong - drawn + 1) + gammaln(n - drawn + 1) - gammaln(n + 1)
    return np.asarray(np.where(wrong < k, 1.0, np.where(c == 0, 0.0, -np.expm1(np.minimum(log_miss, 0.0)))))


def maj_at_k(answers: Iterable[Any], correct: Any, k: int, ties: Ties = "random") -> float:
    """Exact expected accuracy of a majority vote over k of one question's n samples, drawn without replacement.

    Arguments:
      answers: the n final answers. Answers that mean the same must be equal, so bring them to one form first. None
        is no answer: it takes one of the k places, but never wins.
      correct: the right answer.
      k: votes, 1..n.
      ties: when the right answer shares the most votes with t others, `random` counts 1 / (t + 1), `wrong` 0,
        `right` 1. A vote in which nobody answered is wrong.

    Counts subsets as coefficients of a polynomial, in whole numbers, so the only rounding is the last division.
    Raises UserError for k outside 1..n, `correct` None, unhashable answers and an unknown rule for ties.
    Source: majority vote as in Wang et al. 2023, arXiv 2203.11171.
    """
    try:
        votes = Counter(answers)
        right = votes.pop(correct, 0)
    except TypeError:
        raise UserError("answers of maj_at_k hold an unhashable value, accepted are strings, numbers, None") from None
    if correct is None:
        raise UserError("correct of maj_at_k is None, accepted is an answer (None stands for no answer)")
    if ties not in ("random", "wrong", "right"):
        raise UserError(f"ties of maj_at_k is {ties!r}, accepted are 'random', 'wrong', 'right'")
    n = right + votes.total()
    _require_k("maj_at_k", k, n)
    blank = votes.pop(None, 0)
    won = Fraction(0)
    for most in range(1, min(right, k) + 1):
        # subsets[t][m]: ways to draw m other samples so that no answer has more than `most` of them and t have as many.
        # Samples of rarer answers, like blank ones, may be drawn at will.
        free = blank + sum(count for count in votes.values() if count < most)
        subsets = [[math.comb(free, m) for m in range(k - most + 1)]]
        for count in votes.values():
            if count >= most:
                subsets = _with_rival(subsets, count, most)
        for tied, ways in enumerate(subsets):
            share = {"random": Fraction(1, tied + 1), "right": Fraction(1), "wrong": Fraction(tied == 0)}[ties]
            won += share * math.comb(right, most) * ways[k - most]
    return float(won / math.comb(n, k))


def _with_rival(subsets: list[list[int]], count: int, most: int) -> list[list[int]]:
    """`subsets` once a rival that has `count` samples may be drawn too."""
    size = len(subsets[0])
    grown = [[0] * size for _ in range(min(len(subsets) + 1, 1 + (size - 1) // most))]
    for tied, ways in enumerate(subsets):
        for drawn in range(min(count, most, size - 1) + 1):
            after = tied + (drawn == most)
            if after >= len(grown):
                continue
            factor = math.comb(count, drawn)
            for m in range(size - drawn):
                grown[after][m + drawn] += factor * ways[m]
    return grown


class SearchCompression(NamedTuple):
    """How many samples of the base model are worth one of the trained model."""

    k: float
    """1 if one base sample already does as well; infinite if even all base samples do not."""
    low: float
    high: float
    trained: float
    """The trained model's pass@1."""
    base: Float[np.ndarray, " K"]
    """The base model's pass@1, pass@2, ..., up to the fewest samples that a question has."""


def search_compression(
    base_n: Numbers,
    base_c: Numbers,
    trained_n: Numbers,
    trained_c: Numbers,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> SearchCompression:
    """The k at which the base model's mean pass@k reaches the trained model's pass@1, on the same questions.

    A k between whole numbers means a coin: the whole number below or the one above, k samples on average, so pass@k
    is linear in between. Bounds: percentiles of a bootstrap over questions, each with its base and trained counts.
    Counts are `[questions]`, n samples and c right; n may differ.

    Raises UserError for counts that are none, shapes that differ, no question, a level outside (0, 1), no resample.
    Source: the abstract of arXiv 2605.07689 names the effect; this measure of it is ours.
    """
    require_counts("search_compression (base)", base_n, base_c)
    require_counts("search_compression (trained)", trained_n, trained_c)
    base_n, base_c = np.broadcast_arrays(np.asarray(base_n, np.int64), np.asarray(base_c, np.int64))
    trained_n, trained_c = np.broadcast_arrays(np.asarray(trained_n, np.int64), np.asarray(trained_c, np.int64))
    if base_c.ndim != 1 or base_c.size == 0 or base_c.shape != trained_c.shape:
        raise UserError(
            f"counts of search_compression have shapes {base_c.shape} (base) and {trained_c.shape} (trained), "
            "accepted is one count for each of the same questions"
        )
    require_level(level, resamples)
    ks = np.arange(1, base_n.min() + 1)
    # Questions with the same counts share a curve, so a resample is a vector of how often each curve was drawn.
    pairs, kind = np.unique(np.stack([base_n, base_c], -1), axis=0, return_inverse=True)
    curves = pass_at_k(n=pairs[:, :1], c=pairs[:, 1:], k=ks)
    trained = trained_c / trained_n

    def first_reach(questions: np.ndarray) -> float:
        weights = np.bincount(kind.ravel()[questions], minlength=len(pairs)) / questions.size
        return _first_reach(ks, weights @ curves, float(trained[questions].mean()))

    everything = np.arange(trained.size)
    generator = np.random.default_rng(seed)
    drawn = [first_reach(generator.integers(trained.size, size=trained.size)) for _ in range(resamples)]
    # Not interpolated: half-way to infinity is no number.
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    base = np.bincount(kind.ravel(), minlength=len(pairs)) / trained.size @ curves
    return SearchCompression(first_reach(everything), float(low), float(high), float(trained.mean()), base)


def _first_reach(ks: np.ndarray, curve: np.ndarray, target: float) -> float:
    """The first k at which a rising curve reaches the target; rounding of sums does not count as a gap."""
    reached = curve >= target - 1e-12
    if not reached.any():
        return math.inf
    i = int(np.argmax(reached))
    if i == 0:
        return 1.0
    return float(ks[i] - max(0.0, curve[i] - target) / (curve[i] - curve[i - 1]))


def _require_k(name: str, k: Numbers, n: Numbers) -> None:
    ks, most = np.broadcast_arrays(np.asarray(k, np.float64), np.asarray(n, np.float64))
    bad = ~((ks >= 1) & (ks <= most) & (ks == np.floor(ks)))
    if bad.any():
        place = tuple(np.argwhere(bad)[0])
        raise UserError(
            f"k of {name} is {ks[place]:g}, accepted are whole numbers from 1 to the {most[place]:g} samples there are"
        )
