"""Two evaluations of the same questions, question by question."""

from typing import NamedTuple

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation.evaluation import Evaluation
from rlvr_jax.starvation import PairedBootstrap, paired_bootstrap


class McNemarTest(NamedTuple):
    """Questions on which the two differ, and the two-sided p-value of no difference."""

    better: int
    worse: int
    p: float


class ReadingComparison(NamedTuple):
    """Of one reading of the verifier: the first evaluation minus the second."""

    bootstrap: PairedBootstrap
    mcnemar: McNemarTest


def mcnemar_test(a: np.ndarray, b: np.ndarray) -> McNemarTest:
    """McNemar's exact test on shares of right samples of the same questions, `[questions]` each.

    Counts the questions on which a is better and those on which it is worse; if neither were better in truth, each
    would be a fair coin's toss. With one sample a question that is McNemar's test of right and wrong; with more, the
    sign test of the shares. Questions without a difference do not count; without any other, p is 1.
    Source: McNemar 1947 (Psychometrika 12); exact by the binomial law instead of the chi-squared one.
    """
    from scipy.stats import binomtest

    better, worse = int((a > b).sum()), int((a < b).sum())
    return McNemarTest(better, worse, float(binomtest(better, better + worse).pvalue) if better + worse else 1.0)


def require_same_questions(a: np.ndarray, b: np.ndarray) -> None:
    """Raises UserError where the `checksums` of two evaluations differ."""
    if len(a) != len(b):
        raise UserError(
            f"evaluations of {len(a)} and of {len(b)} questions cannot be paired: accepted is the same number"
        )
    if (a != b).any():
        place = int(np.argmax(a != b))
        raise UserError(f"the two evaluations differ at question {place}: accepted are two of the same questions")


def compare_evaluations(a: Evaluation, b: Evaluation) -> dict[str, ReadingComparison]:
    """a minus b for every reading that both have. The numbers of samples may differ.

    Raises UserError when they are not of the same questions, or of fewer than two.
    """
    require_same_questions(a.checksums, b.checksums)
    pairs = {name: (a.readings[name], b.readings[name]) for name in a.readings if name in b.readings}
    shares = {name: (x.mean(-1, np.float64), y.mean(-1, np.float64)) for name, (x, y) in pairs.items()}
    return {name: ReadingComparison(paired_bootstrap(*pair), mcnemar_test(*pair)) for name, pair in shares.items()}
