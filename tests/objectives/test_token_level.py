"""Advantages that differ by token, step or turn, against the papers' numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax import advantages

ENTROPIES = np.array([0.1, 0.5, 2.0, 0.2], np.float32)


def test_zero_variance_entropy_by_hand():
    entropies, mask = np.tile(ENTROPIES, (3, 2, 1)), np.ones((3, 2, 4), bool)
    right, wrong, mixed = np.asarray(advantages.zero_variance_entropy([[1, 1], [0, 0], [1, 0]], entropies, mask))
    np.testing.assert_allclose(right[0], [0.01, 0.05, 0.2, 0.02], rtol=1e-5)
    np.testing.assert_allclose(wrong[0], [-0.19, -0.15, 0, -0.18], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(mixed, np.repeat([[0.7071], [-0.7071]], 4, -1), atol=5e-5)


def test_zero_variance_entropy_looks_only_at_the_completion():
    mask = np.array([[[True, True, False, False]] * 2])
    got = advantages.zero_variance_entropy([[0, 0]], np.where(mask, ENTROPIES, np.inf), mask)
    np.testing.assert_allclose(got[0, 0], [-0.04, 0, 0, 0], rtol=1e-5)


def test_future_kl_by_hand():
    """Half-life 32: future sums .2426, .1457, .2; factors in [1, 1.2]."""
    change = jnp.array([0.1, -0.05, 0.2])
    ones, mask = jnp.ones(3), jnp.ones(3, bool)
    got = advantages.future_kl(ones, change, jnp.zeros(3), mask)
    np.testing.assert_allclose(got, [1.2, 1.1569, 1.2], atol=5e-5)
    wide = advantages.future_kl(ones, change, jnp.zeros(3), mask, lowest=0.0, highest=9.0)
    np.testing.assert_allclose(jnp.log(wide), [0.2426, 0.1457, 0.2], atol=5e-5)
    assert np.all(np.asarray(advantages.future_kl(ones, change, change, mask)) == 1.0)


def test_future_kl_sets_runaway_tokens_aside():
    """A ratio above the cap adds nothing to what came before, and a failure there is not weighted."""
    change, zero, mask = jnp.array([0.1, 3.0, 0.2]), jnp.zeros(3), jnp.ones(3, bool)
    decay = 2 ** (-1 / 32)
    expected = np.exp([0.1 + decay**2 * 0.2, decay * 0.2, 0.2])
    got = advantages.future_kl(jnp.ones(3), change, zero, mask, lowest=0.0, highest=9.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    failures = advantages.future_kl(-jnp.ones(3), change, zero, mask, lowest=0.0, highest=9.0)
    np.testing.assert_allclose(failures, [-expected[0], -1.0, -expected[2]], rtol=1e-5)


def test_future_kl_ignores_pads_and_is_a_constant_of_the_gradient():
    change = jnp.array([0.1, jnp.nan, jnp.inf])
    got = advantages.future_kl(jnp.ones(3), change, jnp.zeros(3), jnp.array([True, False, False]))
    np.testing.assert_allclose(got, [np.exp(0.1), 0, 0], rtol=1e-6)
    gradient = jax.grad(lambda x: advantages.future_kl(jnp.ones(2), x, jnp.zeros(2), jnp.ones(2, bool)).sum())
    assert np.all(np.asarray(gradient(jnp.array([0.01, 0.02]))) == 0.0)


def test_step_scores_by_hand():
    """Future sums 1, .2 and .8, .4; mean .6, deviation .3651."""
    mask = np.ones((2, 2), bool)
    got = advantages.step_scores([0, 0], [[0.8, 0.2], [0.4, 0.4]], mask)
    np.testing.assert_allclose(got, [[1.0954, -1.0954], [0.5477, -0.5477]], atol=5e-5)
    np.testing.assert_allclose(
        advantages.step_scores([1, 0], np.zeros((2, 2)), mask), [[0.7071] * 2, [-0.7071] * 2], atol=5e-5
    )
    assert np.all(np.asarray(advantages.step_scores([1, 1], [[0.8, 0.2], [0.4, 0.4]], mask)) == 0.0)
    uneven = np.array([[True, False], [True, True]])
    got = advantages.step_scores([0, 0], [[0.6, np.nan], [0.4, 0.4]], uneven)
    sums = np.array([0.6, 0.8, 0.4])
    z = (sums - sums.mean()) / sums.std(ddof=1)
    np.testing.assert_allclose(got, [[z[0], 0], [z[1], z[2]]], atol=1e-5)


def test_turn_gain_by_hand():
    """Two samples, both wrong, gains 8 and 4 nats: +-.7071 times .1."""
    got = advantages.turn_gain([0, 0], [[8.0], [4.0]])
    np.testing.assert_allclose(got, [[0.0707, 0], [-0.0707, 0]], atol=5e-5)
    # Held within 50 nats, both the same then; the last turn is scored apart.
    got = advantages.turn_gain([1, 0], [[60.0], [500.0]], weight=0.3)
    np.testing.assert_allclose(got, [[0, 0.7071], [0, -0.7071]], atol=5e-5)
