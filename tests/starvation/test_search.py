"""pass@k, majority votes and search compression against exact fractions, all subsets and simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import maj_at_k, pass_at_k, search_compression


@pytest.mark.parametrize("n", [1, 5, 64, 1000, 10_000])
def test_pass_at_k_against_exact_fractions(n):
    generator = np.random.default_rng(n)
    c = np.unique([0, 1, n // 2, n - 1, n, *generator.integers(0, n + 1, 5)]).clip(0)
    k = np.unique([1, min(4, n), n // 2 + 1, n, *generator.integers(1, n + 1, 3)])
    expected = [[float(1 - Fraction(math.comb(n - x, y), math.comb(n, y))) for y in k] for x in c]
    np.testing.assert_allclose(pass_at_k(n=n, c=c[:, None], k=k), expected, rtol=1e-9, atol=1e-10)


def test_pass_at_one_is_the_share_right_and_arrays_broadcast():
    np.testing.assert_allclose(pass_at_k(n=[4, 8], c=[1, 8], k=1), [0.25, 1.0], rtol=1e-12)
    assert pass_at_k(n=8, c=[[0], [3]], k=[1, 2, 4]).shape == (2, 3)
    assert float(pass_at_k(n=4, c=0, k=4)) == 0.0
    assert float(pass_at_k(n=4, c=1, k=4)) == 1.0


def test_pass_at_k_is_unbiased():
    right = np.random.default_rng(0).binomial(10, 0.15, 1_000_000)
    values = pass_at_k(n=10, c=right, k=4)
    assert abs(values.mean() - (1 - 0.85**4)) < 4 * values.std() / 1000


@pytest.mark.parametrize(
    ("n", "c", "k", "said"),
    [
        (4, 2, 5, "k of pass_at_k is 5, accepted are whole numbers from 1 to the 4"),
        (4, 2, 0, "k of pass_at_k is 0"),
        ([8, 4], [1, 1], 6, "from 1 to the 4"),
        (4, 5, 1, "c of pass_at_k is 5"),
        (0, 0, 1, "n of pass_at_k is 0"),
        (4, 2, 1.5, r"is 1\.5"),
    ],
)
def test_pass_at_k_refuses(n, c, k, said):
    with pytest.raises(UserError, match=said):
        pass_at_k(n=n, c=c, k=k)


def votes_by_brute_force(answers, correct, k, ties):
    scores = []
    for chosen in itertools.combinations(range(len(answers)), k):
        counts = {}
        for i in chosen:
            if answers[i] is not None:
                counts[answers[i]] = counts.get(answers[i], 0) + 1
        most = max(counts.values(), default=0)
        winners = [answer for answer, count in counts.items() if count == most]
        if correct not in winners:
            scores.append(Fraction(0))
        elif len(winners) == 1 or ties == "right":
            scores.append(Fraction(1))
        else:
            scores.append(Fraction(1, len(winners)) if ties == "random" else Fraction(0))
    return float(sum(scores) / len(scores))


@pytest.mark.parametrize("ties", ["random", "wrong", "right"])
@pytest.mark.parametrize(
    "answers", ["aabbc", "abcdefgh", "aaabbbccc", "bbbbbaaa", "aaaa", "bcdbcd", "ab..a.c", "......", "abbcc..d"]
)
def test_majority_vote_against_all_subsets(answers, ties):
    answers = [None if answer == "." else answer for answer in answers]
    for k in range(1, len(answers) + 1):
        expected = votes_by_brute_force(answers, "a", k, ties)
        assert maj_at_k(answers, "a", k, ties) == pytest.approx(expected, abs=1e-15), k


def test_majority_vote_of_many_samples():
    """A vote of all is the plain vote, a vote of one is the share right, and few of many are near independent draws."""
    answers = ["7"] * 80 + ["8"] * 60 + [str(i) for i in range(100, 160)] + [None] * 56
    assert maj_at_k(answers, "7", 256) == 1.0
    assert maj_at_k(answers, "8", 256) == 0.0
    assert maj_at_k(answers, "7", 1) == 80 / 256
    generator = np.random.default_rng(0)
    pool = np.array([-1 if x is None else int(x) for x in answers])
    scores = []
    for _ in range(2_000):
        drawn = generator.choice(pool, 16, replace=False)
        values, counts = np.unique(drawn[drawn >= 0], return_counts=True)
        winners = values[counts == counts.max(initial=0)]
        scores.append((7 in winners) / max(len(winners), 1))
    assert abs(np.mean(scores) - maj_at_k(answers, "7", 16)) < 4 * np.std(scores) / math.sqrt(2_000)


def test_majority_vote_refuses():
    for arguments, said in [
        ((["a"], "a", 2), "k of maj_at_k is 2"),
        ((["a"], None, 1), "correct of maj_at_k is None"),
        (([["a"]], "a", 1), "unhashable"),
        ((["a"], ["a"], 1), "unhashable"),
        (([], "a", 1), "k of maj_at_k is 1"),
    ]:
        with pytest.raises(UserError, match=said):
            maj_at_k(*arguments)


def test_search_compression_by_hand():
    """Two questions, one of four right each: pass@1 1/4, @2 1/2, @3 3/4, @4 1. Trained 5/8 lies half-way, at 2.5."""
    result = search_compression([4, 4], [1, 1], [8, 8], [5, 5])
    np.testing.assert_allclose(result.base, [0.25, 0.5, 0.75, 1.0])
    assert (result.k, result.low, result.high, result.trained) == pytest.approx((2.5, 2.5, 2.5, 0.625))
    for trained, k in ((2, 1.0), (1, 1.0), (0, 1.0), (4, 2.0), (6, 3.0), (8, 4.0)):
        assert search_compression(4, [1, 1], 8, [trained, trained], resamples=1).k == pytest.approx(k), trained


def test_search_compression_that_is_never_reached():
    result = search_compression(4, [0, 0, 1], 4, [4, 4, 4], resamples=200)
    assert (result.k, result.high) == (math.inf, math.inf)
    assert not math.isnan(result.low)


def test_search_compression_finds_a_known_factor():
    """Trained success is 1 - (1 - p)^6, six base samples at once: k is 6, and the interval covers it about as said."""
    inside, ks = 0, []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        p = generator.beta(0.4, 1.2, 300)
        base, trained = generator.binomial(32, p), generator.binomial(8, 1 - (1 - p) ** 6)
        result = search_compression(32, base, 8, trained, resamples=200, seed=seed)
        ks.append(result.k)
        inside += result.low <= 6 <= result.high
    assert abs(np.mean(ks) - 6) < 4 * np.std(ks) / math.sqrt(40)
    assert inside >= 33


def test_search_compression_refuses():
    with pytest.raises(UserError, match="same questions"):
        search_compression(4, [1, 2], 4, [1, 2, 3])
    with pytest.raises(UserError, match=r"c of search_compression \(trained\) is 5"):
        search_compression(4, [1, 2], 4, [5, 1])
    with pytest.raises(UserError, match=r"level is 95\.0"):
        search_compression(4, [1, 2], 4, [1, 2], level=95.0)
