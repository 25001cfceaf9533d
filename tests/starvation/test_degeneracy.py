"""Degeneracy of a batch: by hand, masked, under every transformation, and refused where it would lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from rlvr_jax.errors import UserError
from rlvr_jax.starvation import bernoulli_prediction, degeneracy, filtering_cost, zero_advantage_share


@pytest.mark.parametrize(("p", "expected"), [(0.1, 0.6562), (0.25, 0.3203), (0.5, 0.125), (0.7, 0.2482), (0.9, 0.6562)])
def test_prediction_at_group_size_four(p, expected):
    np.testing.assert_allclose(bernoulli_prediction(jnp.array(p), 4), expected, atol=6e-5)


def test_shares_by_hand():
    rewards = jnp.array([[0, 0], [1, 1], [1, 0], [0, 0]])
    shares = degeneracy(rewards)
    assert [float(x) for x in shares] == pytest.approx([0.5, 0.25, 0.25, 0.75, 0.375**2 + 0.625**2])


def test_heterogeneous_prompts_exceed_the_prediction():
    """Beta(0.205, 0.615) has mean 0.25 and gives degeneracy 0.6925 at G = 4, against 0.32 predicted."""
    key_p, key_r = jax.random.split(jax.random.key(0))
    p = jax.random.beta(key_p, 0.205, 0.615, (20000, 1))
    shares = degeneracy(jax.random.bernoulli(key_r, p, (20000, 4)).astype(jnp.float32))
    np.testing.assert_allclose(shares.degenerate, 0.6925, atol=0.012)
    np.testing.assert_allclose(shares.predicted, 0.3203, atol=0.015)


def test_wasted_samples_are_those_of_zero_advantage_groups():
    rewards = jnp.array([[0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 0]])
    assert float(zero_advantage_share(rewards - rewards.mean(-1, keepdims=True))) == 0.5
    assert float(zero_advantage_share(2.0 * rewards - 1.0)) == 0.0


@pytest.mark.parametrize("form", [np.array, jnp.array, lambda x: x, lambda x: np.array(x, bool)])
def test_any_form_of_rewards(form):
    shares = degeneracy(form([[0, 0], [1, 1], [1, 0], [0, 0]]))
    assert [float(x) for x in shares] == pytest.approx([0.5, 0.25, 0.25, 0.75, 0.375**2 + 0.625**2])


def test_masked_groups_by_hand():
    """Sizes 3, 2, 1, 0 with 0, 1, 1, 0 right: the mean is 2/6; the empty group is left out."""
    nan = np.nan
    rewards = [[0, 0, 0], [1, 0, nan], [nan, 1, 7], [nan, nan, nan]]
    mask = [[True, True, True], [True, True, False], [False, True, False], [False, False, False]]
    p = 1 / 3
    predicted = np.mean([p**n + (1 - p) ** n for n in (3, 2, 1)])
    expected = [1 / 3, 1 / 3, 1 / 3, 2 / 3, predicted]
    for transform in (lambda f: f, jax.jit):
        shares = transform(degeneracy)(np.array(rewards), np.array(mask))
        np.testing.assert_allclose(shares, expected, rtol=1e-6)
    np.testing.assert_array_equal(degeneracy(np.ones((3, 2)), np.zeros((3, 2), bool)), np.zeros(5))
    np.testing.assert_array_equal(degeneracy(np.ones((0, 2))), np.zeros(5))


def test_leading_axes_jit_vmap_and_gradient():
    rewards = jax.random.bernoulli(jax.random.key(0), 0.4, (2, 3, 5, 4)).astype(jnp.float32)
    whole = degeneracy(rewards)
    each = jax.jit(jax.vmap(degeneracy))(rewards)
    for one, other in zip(whole, each, strict=True):
        assert one.shape == (2, 3)
        np.testing.assert_allclose(one, other, rtol=1e-6)
    for batch in (jnp.zeros((2, 3)), jnp.ones((2, 3)), rewards[0, 0]):
        mask = jnp.ones(batch.shape, bool).at[0, 1:].set(False).at[1].set(False)
        gradient = jax.jit(jax.grad(lambda r, mask: degeneracy(r, mask).predicted))(batch, mask)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("bad", "said"), [(0.5, "0.5"), (np.nan, "nan"), (2.0, "2"), (-1.0, "-1")])
def test_rewards_that_are_not_binary_are_refused(bad, said):
    rewards = np.array([[0.0, 1.0], [1.0, bad]])
    with pytest.raises(UserError, match=rf"rewards of degeneracy are {said} at \[1, 1\]: accepted are 0 and 1"):
        degeneracy(rewards)
    error, _ = checkify.checkify(jax.jit(degeneracy))(rewards)
    assert "accepted are 0 and 1" in error.get()
    jax.jit(degeneracy)(rewards)  # as documented: not seen


@pytest.mark.parametrize("rewards", [[1, 0], [[0, 1], [1]], [["a"]]])
def test_shapes_that_are_none_are_refused(rewards):
    with pytest.raises(UserError, match="rewards of degeneracy"):
        degeneracy(rewards)


def test_filtering_cost():
    np.testing.assert_allclose(filtering_cost([0.0, 0.5, 0.69, 1.0]), [1, 2, 1 / 0.31, np.inf], rtol=1e-6)
    assert np.isfinite(jax.grad(filtering_cost)(0.9))
    # Prompts sampled until one is kept are a geometric number.
    np.testing.assert_allclose(filtering_cost(0.8), np.random.default_rng(0).geometric(0.2, 100_000).mean(), rtol=0.02)
