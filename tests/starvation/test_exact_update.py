"""The exact update against known factors, brute force over all groups, and simulation."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlvr_jax as rj
from rlvr_jax.errors import UserError
from rlvr_jax.starvation import expected_update, gradient_moments, pass_at_k, signal_to_noise


def sign(r):
    return 2 * r - 1


def centred(r):
    return r - r.mean(-1, keepdims=True)


def normalised(ddof):
    def advantage(r):
        # Its standard deviation is zero only where the centred reward is.
        return centred(r) / (jnp.std(r, -1, keepdims=True, ddof=ddof) + 1e-6)

    return advantage


def inverse_count(r):
    """Weights that sum to one over right and to minus one over wrong samples."""
    wrong = 1 - r
    return r / jnp.maximum(r.sum(-1, keepdims=True), 1) - wrong / jnp.maximum(wrong.sum(-1, keepdims=True), 1)


ADVANTAGES = {
    "sign": sign,
    "half": lambda r: r - 0.5,
    "reward": lambda r: r,
    "centred": centred,
    "normalised ddof 1": normalised(1),
    "normalised ddof 0": normalised(0),
    "inverse count": inverse_count,
}

# The package's own, of one group's rewards alone, beside those written out above.
OURS = ("sign", "reinforce", "positive_only", "negative_only", "tasa", "leave_one_out", "ngrpo", "max_rl", "mapo")
ADVANTAGES |= {f"rlvr_jax {name}": getattr(rj.advantages, name) for name in OURS}
for normalize in ("none", "std"):
    ADVANTAGES[f"rlvr_jax group_mean {normalize}"] = functools.partial(
        rj.advantages.group_mean, normalize=normalize, ddof=1, eps=1e-6
    )

RATES = np.array([0.0, 0.05, 0.25, 0.5, 0.9, 1.0], np.float32)
LOGITS = np.array([0.3, -0.5, 1.1, 0.0, -1.2], np.float32)
RIGHT = np.array([True, False, False, True, False])
every_advantage = pytest.mark.parametrize("advantage", ADVANTAGES.values(), ids=ADVANTAGES)


@pytest.mark.parametrize("group_size", [1, 4, 16])
def test_sign_by_kind_of_group(group_size):
    split = expected_update(sign, RATES, group_size)
    np.testing.assert_allclose(split.total, np.full(6, 2 * group_size), rtol=1e-5)
    np.testing.assert_allclose(split.all_wrong, group_size * (1 - RATES) ** (group_size - 1), rtol=1e-5)
    np.testing.assert_allclose(split.all_right, group_size * RATES ** (group_size - 1), rtol=1e-5)
    pass_slope = jax.vmap(jax.grad(lambda p: 1 - (1 - p) ** group_size))(RATES)
    np.testing.assert_allclose(split.all_wrong, pass_slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("group_size", [2, 4, 16])
def test_centred_learns_from_mixed_groups_alone(group_size):
    split = expected_update(centred, RATES, group_size)
    np.testing.assert_allclose(split.mixed, np.full(6, group_size - 1), rtol=1e-5)
    np.testing.assert_array_equal([split.all_wrong, split.all_right], np.zeros((2, 6)))


def test_normalised_factors_at_group_size_four():
    total = expected_update(normalised(1), RATES[1:5], 4).total
    np.testing.assert_allclose(total, [5.92, 5.70, 5.60, 5.86], atol=6e-3)
    assert np.all(expected_update(normalised(0), RATES[1:5], 4).total > 6.4)


SIMULATED = ("sign", "centred", "normalised ddof 1", "normalised ddof 0", "rlvr_jax sign", "rlvr_jax group_mean std")


@pytest.mark.parametrize("name", SIMULATED)
def test_factors_against_a_million_groups(name):
    """`sum_i A_i (r_i / p - (1 - r_i) / (1 - p))` has the factor for its mean, by kind of group."""
    advantage = ADVANTAGES[name]
    generator = np.random.default_rng(0)
    p, group_size = 0.3, 4
    rewards = (generator.random((1_000_000, group_size)) < p).astype(np.float32)
    factor = np.sum(np.asarray(advantage(rewards)) * np.where(rewards > 0, 1 / p, -1 / (1 - p)), -1, dtype=np.float64)
    right = rewards.sum(-1)
    split = expected_update(advantage, p, group_size)
    kinds = {"all_wrong": right == 0, "all_right": right == 4, "mixed": (right > 0) & (right < 4)}
    for part, kind in kinds.items():
        values = np.where(kind, factor, 0)
        assert abs(values.mean() - float(getattr(split, part))) <= 4 * values.std() / 1000 + 1e-5, part


def test_update_is_safe_under_transformations():
    for advantage in (sign, normalised(1)):
        whole = jax.jit(lambda p, f=advantage: expected_update(f, p, 4))(RATES)
        each = jax.vmap(lambda p, f=advantage: expected_update(f, p, 4).total)(RATES)
        np.testing.assert_allclose(whole.total, each, rtol=1e-6)
        slope = jax.vmap(jax.grad(lambda p, f=advantage: expected_update(f, p, 4).all_wrong))(RATES)
        assert bool(jnp.isfinite(slope).all())
    assert expected_update(sign, np.full((2, 3), 0.5), 4).total.shape == (2, 3)


def brute_force(advantage, logits, right, group_size):
    """Mean and variance by all V^G groups, in float64."""
    policy = np.exp(logits.astype(np.float64))
    policy /= policy.sum()
    groups = np.array(list(itertools.product(range(len(logits)), repeat=group_size)))
    advantages = np.asarray(advantage(right[groups].astype(np.float32)), np.float64)
    gradients = np.sum(advantages[..., None] * (np.eye(len(logits))[groups] - policy), 1)
    chance = np.prod(policy[groups], -1)
    mean = chance @ gradients
    return mean, chance @ np.sum((gradients - mean) ** 2, -1)


@every_advantage
@pytest.mark.parametrize("group_size", [3])
def test_moments_against_all_groups(advantage, group_size):
    mean, variance = brute_force(advantage, LOGITS, RIGHT, group_size)
    moments = gradient_moments(advantage, LOGITS, RIGHT, group_size)
    np.testing.assert_allclose(moments.mean, mean, atol=2e-5)
    np.testing.assert_allclose(moments.variance, variance, rtol=2e-5)
    ratio = signal_to_noise(advantage, LOGITS, RIGHT, group_size)
    np.testing.assert_allclose(ratio, mean @ mean / variance, rtol=5e-5)


@every_advantage
def test_mean_is_the_factor_times_the_slope_of_the_success_rate(advantage):
    def success_rate(logits):
        return jnp.sum(jnp.where(RIGHT, jax.nn.softmax(logits), 0))

    factor = expected_update(advantage, success_rate(LOGITS), 4).total
    moments = gradient_moments(advantage, LOGITS, RIGHT, 4)
    np.testing.assert_allclose(moments.mean, factor * jax.grad(success_rate)(LOGITS), atol=1e-5)


@pytest.mark.parametrize("advantage", [sign, centred, normalised(1)])
def test_signal_to_noise_against_a_million_groups(advantage):
    generator = np.random.default_rng(2)
    policy = np.asarray(jax.nn.softmax(LOGITS), np.float64)
    answers = generator.choice(5, (1_000_000, 4), p=policy / policy.sum())
    advantages = np.asarray(advantage(RIGHT[answers].astype(np.float32)), np.float64)
    gradients = sum(advantages[:, i, None] * (np.eye(5)[answers[:, i]] - policy) for i in range(4))
    moments = gradient_moments(advantage, LOGITS, RIGHT, 4)
    mean_error = gradients.std(0) / 1000
    assert np.all(np.abs(gradients.mean(0) - moments.mean) < 4 * mean_error)
    squares = np.sum((gradients - np.asarray(moments.mean)) ** 2, -1)
    assert abs(squares.mean() - moments.variance) < 4 * squares.std() / 1000


@pytest.mark.parametrize("right", [np.zeros(5, bool), np.ones(5, bool)])
def test_moments_where_no_or_every_answer_is_right(right):
    for advantage in (sign, centred):
        mean, variance = brute_force(advantage, LOGITS, right, 3)
        moments = gradient_moments(advantage, LOGITS, right, 3)
        np.testing.assert_allclose(moments.mean, mean, atol=1e-6)
        np.testing.assert_allclose(moments.variance, variance, rtol=1e-5)
    assert float(signal_to_noise(centred, LOGITS, right, 3)) == 0.0


def test_certain_policies_give_numbers_and_finite_gradients():
    sharp = np.array([200.0, 0.0, 0.0, 0.0, 0.0], np.float32)
    for advantage in (sign, normalised(1)):
        both = jax.jit(jax.value_and_grad(lambda x, right, f=advantage: signal_to_noise(f, x, right, 4)))
        for logits, right in ((sharp, RIGHT), (sharp, ~RIGHT), (LOGITS, RIGHT), (LOGITS, np.zeros(5, bool))):
            ratio, slope = both(logits, right)
            assert np.isfinite(ratio)
            assert np.isfinite(slope).all()


def test_advantages_that_see_more_than_the_count_are_refused():
    with pytest.raises(UserError, match="advantage of 0 right and 4 wrong samples is"):
        expected_update(lambda r: r + jnp.arange(4) / 10, 0.5, 4)
    with pytest.raises(UserError, match="accepted is one finite value"):
        expected_update(lambda r: r / r.sum(-1, keepdims=True), 0.5, 4)
    with pytest.raises(UserError, match=r"advantage gives shape \(\)"):
        expected_update(lambda r: r.sum(-1), 0.5, 4)
    with pytest.raises(UserError, match=r"success rate of expected_update is 1\.2"):
        expected_update(sign, 1.2, 4)
    with pytest.raises(UserError, match="group_size"):
        expected_update(sign, 0.5, 0)


def test_groups_do_not_see_each_other():
    """A whitening over all groups of a call would mix the enumerated ones; each must stand alone."""
    whitened = expected_update(lambda r: r - r.mean(), 0.3, 4)
    np.testing.assert_allclose(whitened.total, expected_update(centred, 0.3, 4).total, rtol=1e-6)


def test_sign_on_all_wrong_groups_climbs_pass_at_k():
    """Their mean update is the gradient of pass@G, here of a softmax policy and by the estimator's own limit."""

    def success_rate(logits):
        return jnp.sum(jnp.where(RIGHT, jax.nn.softmax(logits), 0))

    p = float(success_rate(LOGITS))
    slope = jax.grad(lambda x: 1 - (1 - success_rate(x)) ** 4)(LOGITS)
    update = expected_update(sign, p, 4).all_wrong * jax.grad(success_rate)(LOGITS)
    np.testing.assert_allclose(update, slope, rtol=1e-4)
    chances = [math.comb(4, c) * p**c * (1 - p) ** (4 - c) for c in range(5)]
    assert float(np.dot(chances, pass_at_k(n=4, c=np.arange(5), k=4))) == pytest.approx(1 - (1 - p) ** 4)
