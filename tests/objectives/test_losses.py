"""Surrogates and aggregation: the number, the gradient and the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rlvr_jax import OBJECTIVES, Loss, aggregate, kl_in_loss, named_objective, policy_gradient, ppo_clip, weighted_mean
from rlvr_jax.errors import UserError

MASK = jnp.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
VALUES = jnp.array([[1.0, 2.0, 6.0, jnp.nan], [5.0, jnp.inf, 0.0, 0.0], [7.0, 7.0, 7.0, 7.0]])


@pytest.mark.parametrize(
    ("how", "total", "weight"),
    [("sequence_mean", 3 + 5, 3), ("token_mean", 14, 4), ("sequence_sum", 14, 3), ("constant_length", 14, 12)],
)
def test_aggregate_by_hand_and_nothing_leaks_from_masked_places(how, total, weight):
    got_total, got_weight = aggregate(VALUES, MASK, how)
    assert (float(got_total), float(got_weight)) == (total, weight)
    gradient = jax.grad(lambda x: aggregate(x, MASK, how)[0])(VALUES)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[~np.asarray(MASK)] == 0)


@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_micro_batches_of_unequal_length_add_up(how):
    values, mask = jnp.arange(12.0).reshape(3, 4), MASK
    whole = weighted_mean(*aggregate(values, mask, how))
    parts = [aggregate(values[i : i + 1], mask[i : i + 1], how) for i in range(3)]
    np.testing.assert_allclose(weighted_mean(*map(sum, zip(*parts, strict=True))), whole, rtol=1e-6)


@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_nothing_to_learn_gives_zero_not_nan(how):
    empty = jnp.zeros((2, 3), bool)
    loss, gradient = jax.value_and_grad(lambda x: weighted_mean(*aggregate(x, empty, how)))(jnp.ones((2, 3)))
    assert float(loss) == 0.0
    assert np.all(np.asarray(gradient) == 0.0)


def test_unknown_aggregation_is_refused():
    with pytest.raises(UserError, match="'mean', accepted are sequence_mean"):
        aggregate.__wrapped__(jnp.ones((1, 1)), jnp.ones((1, 1), bool), "mean")


def test_ppo_clip_against_torch():
    generator = np.random.default_rng(0)
    new, old, advantages = (generator.normal(size=(6, 5)).astype(np.float32) for _ in range(3))
    theirs = torch.tensor(new, requires_grad=True)
    ratio = torch.exp(theirs - torch.tensor(old))
    bounded = torch.clamp(ratio, 0.8, 1.28)
    loss = -torch.minimum(ratio * torch.tensor(advantages), bounded * torch.tensor(advantages))
    loss.sum().backward()
    ours = ppo_clip(new, old, advantages, clip_low=0.2, clip_high=0.28)
    gradient = jax.grad(lambda x: ppo_clip(x, old, advantages, clip_low=0.2, clip_high=0.28).sum())(jnp.array(new))
    np.testing.assert_allclose(ours, loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradient, theirs.grad, rtol=1e-5, atol=1e-6)


def test_on_policy_both_surrogates_have_one_gradient():
    log_probabilities, advantages = jnp.array([[-0.5, -2.0]]), jnp.array([[1.0, -1.0]])
    gradients = [
        jax.grad(lambda x, f=f: f(x, log_probabilities, advantages).sum())(log_probabilities)
        for f in (policy_gradient, ppo_clip)
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], [[-1.0, 1.0]])


def test_kl_value_and_gradient_in_expectation_by_enumeration():
    """Over all tokens of a small vocabulary: expected value is KL, expected gradient is grad KL, also off-policy."""
    logits, reference = jnp.array([0.3, -1.0, 0.8, 0.1]), jnp.array([0.0, 0.5, -0.4, 1.0])
    behaviour = jax.nn.log_softmax(jnp.array([0.2, 0.1, -0.3, 0.0]))

    def exact(logits):
        log_p = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(reference)))

    for sampled_from in (jax.nn.log_softmax(logits), behaviour):

        def estimate(logits, sampled_from=sampled_from):
            log_p = jax.nn.log_softmax(logits)
            return jnp.sum(jnp.exp(sampled_from) * kl_in_loss(log_p, jax.nn.log_softmax(reference), sampled_from))

        np.testing.assert_allclose(jax.grad(estimate)(logits), jax.grad(exact)(logits), rtol=1e-4, atol=1e-6)
    on_policy = jnp.exp(jax.nn.log_softmax(logits))
    value = on_policy * kl_in_loss(
        jax.nn.log_softmax(logits), jax.nn.log_softmax(reference), jax.nn.log_softmax(logits)
    )
    np.testing.assert_allclose(value.sum(), exact(logits), rtol=1e-5)


def test_loss_composes_surrogate_aggregation_and_kl():
    new, old, reference = jnp.full((2, 2), -1.0), jnp.full((2, 2), -1.0), jnp.full((2, 2), -1.5)
    advantages, mask = jnp.array([[1.0, 1.0], [-1.0, -1.0]]), jnp.ones((2, 2), bool)
    plain, weight = Loss()(new, old, advantages, mask)
    with_kl, _ = Loss(kl_coefficient=0.1)(new, old, advantages, mask, reference)
    assert (float(plain), float(weight)) == (0.0, 2.0)
    np.testing.assert_allclose(with_kl - plain, 2 * 0.1 * (np.exp(-0.5) + 0.5 - 1), rtol=1e-5)
    with pytest.raises(UserError, match="reference_log_probabilities must be given"):
        Loss(kl_coefficient=0.1)(new, old, advantages, mask)


def test_objectives_are_found_by_name():
    assert named_objective("sign") is OBJECTIVES["sign"]
    assert named_objective("group_mean", Loss(surrogate="ppo_clip")).loss.surrogate == "ppo_clip"
    with pytest.raises(UserError, match="'grop', accepted are sign"):
        named_objective("grop")
