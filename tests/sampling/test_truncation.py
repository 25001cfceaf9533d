"""Top-k, top-p and min-p against transformers' own, and a million draws against the stated distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import torch
from transformers.generation import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rlvr_jax.errors import UserError
from rlvr_jax.sampling import Truncation, checked_truncation
from rlvr_jax.sampling.categorical import draw as eager_draw
from rlvr_jax.sampling.truncation import truncate

ALL = Truncation(0, 1.0, 0.0)
draw = jax.jit(eager_draw)


def theirs(logits, truncation):
    """Boolean, which tokens transformers keeps."""
    scores = torch.tensor(np.asarray(logits))
    if truncation.top_k:
        scores = TopKLogitsWarper(int(truncation.top_k))(None, scores)
    if truncation.top_p < 1:
        scores = TopPLogitsWarper(float(truncation.top_p))(None, scores)
    if truncation.min_p > 0:
        scores = MinPLogitsWarper(float(truncation.min_p))(None, scores)
    return torch.isfinite(scores).numpy()


@pytest.mark.parametrize(
    "truncation",
    [
        ALL,
        Truncation(top_k=1),
        Truncation(top_k=17),
        Truncation(top_k=5000),
        Truncation(top_p=0.05),
        Truncation(top_p=0.9),
        Truncation(min_p=0.02),
        Truncation(min_p=1.0),
        Truncation(top_k=40, top_p=0.8, min_p=0.05),
    ],
    ids=str,
)
def test_kept_tokens_are_transformers(truncation):
    logits = 3 * jax.random.normal(jax.random.key(2), (6, 700))
    kept = np.asarray(truncate(logits, truncation)) > -1e29
    np.testing.assert_array_equal(kept, theirs(logits, truncation))
    np.testing.assert_array_equal(np.asarray(truncate(logits, truncation))[kept], np.asarray(logits)[kept])
    assert kept[np.arange(6), logits.argmax(-1)].all()


def test_by_hand_and_ties():
    logits = jnp.log(jnp.array([0.4, 0.1, 0.3, 0.1, 0.1]))

    def kept(**numbers):
        return [i for i, value in enumerate(truncate(logits, ALL._replace(**numbers)).tolist()) if value > -1e29]

    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 2]
    assert kept(top_k=3) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.39) == [0]
    assert kept(top_p=0.69) == [0, 2]
    assert kept(min_p=0.5) == [0, 2]
    # After top-k, 0.4 is 4/7 of what is left.
    assert kept(top_k=2, top_p=0.55) == [0]
    # A negative zero is a zero.
    assert (truncate(jnp.array([0.0, -1.0, -jnp.inf]), ALL._replace(top_k=1)) > -1e29).tolist() == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "truncation",
    [None, Truncation(top_k=12), Truncation(top_p=0.8), Truncation(min_p=0.1)],
    ids=["plain", "top-k", "top-p", "min-p"],
)
def test_a_million_tokens_have_the_stated_distribution(truncation):
    """Chi-square against probabilities computed by NumPy in double precision; p > 0.001."""
    logits = 1.5 * jax.random.normal(jax.random.key(7), (300,))
    temperature, count = 0.8, 1_000_000
    wide = np.asarray(logits, np.float64) / temperature
    kept = np.ones(300, bool) if truncation is None else theirs(logits[None] / temperature, truncation)[0]
    probabilities = np.where(kept, np.exp(wide - wide.max()), 0.0)
    probabilities /= probabilities.sum()
    counts = np.zeros(300)
    for seed in range(10):
        uniforms = jax.random.uniform(jax.random.key(seed), (count // 10,))
        tokens, log_probabilities, _, entropies = draw(logits[None], uniforms, jnp.float32(temperature), truncation)
        counts += np.bincount(tokens, minlength=300)
    assert counts[~kept].sum() == 0
    assert scipy.stats.chisquare(counts[kept], count * probabilities[kept]).pvalue > 0.001
    np.testing.assert_allclose(log_probabilities, np.log(probabilities[np.asarray(tokens)]), atol=1e-5)
    entropy = -np.sum(probabilities[kept] * np.log(probabilities[kept]))
    np.testing.assert_allclose(entropies, entropy, rtol=1e-5)


def test_greedy_reports_the_whole_policy():
    logits = jax.random.normal(jax.random.key(1), (4, 50))
    uniforms = jnp.full(4, 0.5)
    whole = draw(logits, uniforms, jnp.float32(0.0))
    cut = draw(logits, uniforms, jnp.float32(0.0), Truncation(top_k=3))
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_of_a_user():
    assert checked_truncation() is None
    assert checked_truncation(top_k=4).top_k == 4
    for numbers, message in (
        ({"top_k": -1}, "top_k is -1, accepted is from 0"),
        ({"top_k": 2**31}, "top_k is 2147483648, accepted is from 0"),
        ({"top_p": 0.0}, "top_p is 0.0, accepted is above 0 and at most 1"),
        ({"min_p": 1.5}, "min_p is 1.5, accepted is from 0"),
        ({"top_p": float("nan")}, "top_p is nan"),
    ):
        with pytest.raises(UserError, match=message):
            checked_truncation(**numbers)
