"""Advantages by the sampling policy's confidence, against the papers' numbers worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import advantages

LENGTHS = np.array([2.0, 3, 4, 5])


def log_probabilities(confidences):
    """Of whole completions, whose length-normalised probability is this."""
    return (LENGTHS[: len(confidences)] * np.log(confidences)).astype(np.float32)


def test_confidence_is_length_normalised_and_one_for_nothing():
    got = advantages.confidences(jnp.array([-2.0, -6.0, 0.0]), jnp.array([2.0, 3.0, 0.0]))
    np.testing.assert_allclose(got, [np.exp(-1), np.exp(-2), 1.0], rtol=1e-6)


def test_lens_all_wrong():
    """D = 1.6: fractions 1, .6, 1/3, 1/7; only centred, weight 1/4; it sums to zero."""
    got = advantages.lens([0, 0, 0, 0], log_probabilities([0.8, 0.6, 0.4, 0.2]), LENGTHS)
    np.testing.assert_allclose(got * 4, [-0.1202, -0.0202, 0.0464, 0.0940], atol=5e-5)
    whole = advantages.lens([0] * 4, log_probabilities([0.8, 0.6, 0.4, 0.2]), LENGTHS, negative_weight=1.0)
    np.testing.assert_allclose(whole, got * 4, rtol=1e-6)


def test_lens_mixed_by_formula():
    c = np.array([0.8, 0.6, 0.4, 0.2])
    log_p = log_probabilities(c)
    rewards = np.array([1.0, 0, 0, 1])
    implicit = 1 / np.mean(rewards / np.exp(log_p))
    partition = max(implicit, 2 * c.max())
    modified = rewards - (1 - rewards) / 4 * c / (partition - c)
    expected = (modified - modified.mean()) / modified.std(ddof=1)
    np.testing.assert_allclose(advantages.lens(rewards, log_p, LENGTHS), expected, atol=2e-5)
    # The confident failure costs more than the other.
    assert expected[1] < expected[2] < 0


def test_lens_takes_the_implicit_partition_where_it_is_larger():
    """Very likely right answers of one token: 1 / mean(r / pi) exceeds twice the confidence when few are right."""
    c, rewards = np.array([0.9, 0.1, 0.1, 0.1]), np.array([1.0, 0, 0, 0])
    log_p = np.log(c).astype(np.float32)
    implicit = 4 * 0.9
    modified = rewards - (1 - rewards) / 4 * c / (implicit - c)
    expected = (modified - modified.mean()) / modified.std(ddof=1)
    np.testing.assert_allclose(advantages.lens(rewards, log_p, np.ones(4)), expected, atol=2e-5)


def test_lens_survives_completions_of_any_improbability():
    got = advantages.lens([[1, 0, 0], [0, 0, 0]], np.full((2, 3), -5000.0), np.full((2, 3), 2.0))
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got[0], advantages.group_mean([1, 0, 0], normalize="std"), rtol=1e-5)


def test_c2gspg():
    got = advantages.c2gspg([1, 0, 0, 0], log_probabilities([0.6, 0.5, 0.5, 0.8]), LENGTHS)
    np.testing.assert_allclose(got, [1.875, -0.5, -0.5, -1.25], atol=5e-5)


def test_care_by_hand():
    log_p = np.array([-3.0, -1, -2, -4, -5], np.float32)
    np.testing.assert_allclose(
        advantages.care([1, 0, 0, 0], log_p[:4], LENGTHS), [2, -1 / 3, -1 / 3, -1 / 3], atol=2e-5
    )
    five = advantages.care([1, 0, 0, 0, 0], log_p, np.arange(1, 6))
    np.testing.assert_allclose(five, [2, -0.25, -0.25, -0.25, -0.25], atol=2e-5)
    # All wrong: the likeliest of them is lifted, however small the pseudo reward.
    for rescue in (0.1, 0.01):
        rescued = advantages.care([0, 0, 0, 0], log_p[:4], LENGTHS, rescue=rescue)
        np.testing.assert_allclose(rescued, [-1 / 3, 2, -1 / 3, -1 / 3], atol=1e-3)
    assert np.all(np.asarray(advantages.care([0, 0, 0, 0], log_p[:4], LENGTHS, rescue=0.0)) == 0)


def test_care_chooses_the_shortest_anchor_and_the_likeliest_failures():
    rewards = [1, 1, 0, 0, 0]
    got = np.asarray(
        advantages.care(rewards, np.array([-1.0, -2, -9, -3, -4]), np.array([7.0, 4, 5, 5, 5]), negatives=2)
    )
    assert got[0] == 0.0
    assert got[2] == 0.0
    assert got[1] > 0
    assert got[3] < 0
    assert got[3] == got[4]
    # z-score of (1, 0, 0) with population deviation, nothing to equalize.
    np.testing.assert_allclose(got[[1, 3]], [np.sqrt(2), -0.5 / np.sqrt(2)], rtol=1e-4)


def test_rank_reward():
    """Scores -sqrt(T) |gradient|: y2 > y4 > y1 > y3."""
    got = advantages.rank_reward([3.0, 1.0, 4.0, 2.0], np.full(4, 9.0))
    np.testing.assert_allclose(got, [-1 / 3, 1, -1, 1 / 3], rtol=1e-6)
    z = advantages.group_mean(got, normalize="std")
    np.testing.assert_allclose(z, [-0.3873, 1.1619, -1.1619, 0.3873], atol=5e-5)
    by_length = advantages.rank_reward([2.0, 2.0, 2.0], [9.0, 1.0, 4.0])
    np.testing.assert_allclose(by_length, [-1, 1, 0])
    np.testing.assert_allclose(advantages.rank_reward([2.0, 2.0, 1.0], [1.0, 1.0, 1.0]), [-0.5, -0.5, 1.0])


@pytest.mark.parametrize("function", [advantages.lens, advantages.c2gspg, advantages.care])
def test_an_empty_completion_is_no_special_case(function):
    got = function([[1, 0, 0]], np.array([[-1.0, 0.0, -2.0]]), np.array([[2.0, 0.0, 3.0]]))
    assert np.all(np.isfinite(got))
