"""Advantages against hand-computed values and the golden tables of other libraries' formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import OBJECTIVES, group_mean, group_mean_std, half_reference, sign
from rlvr_jax.errors import UserError

CENTRED = [group_mean, group_mean_std]
FIXED = [sign, half_reference]


@pytest.mark.parametrize(
    ("function", "rewards", "expected"),
    [
        (sign, [1, 0, 0, 0], [1, -1, -1, -1]),
        (half_reference, [1, 0, 0, 0], [0.5, -0.5, -0.5, -0.5]),
        (group_mean, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        (group_mean, [1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
        (group_mean_std, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        (group_mean_std, [1, 1, 0, 0], [0.8660, 0.8660, -0.8660, -0.8660]),
        (sign, [0, 0, 0, 0], [-1, -1, -1, -1]),
        (sign, [1, 1, 1, 1], [1, 1, 1, 1]),
    ],
)
def test_hand_calculation(function, rewards, expected):
    np.testing.assert_allclose(function(jnp.array(rewards)), expected, atol=1e-4)


# Success and failure advantage for c successes of 8: unbiased deviation with eps 1e-4, without eps, and population.
GOLDEN = {
    1: ((2.4742, -0.3535), (2.4749, -0.3536), (2.6458, -0.3780)),
    2: ((1.6198, -0.5399), (1.6202, -0.5401), (1.7321, -0.5774)),
    4: ((0.9352, -0.9352), (0.9354, -0.9354), (1.0000, -1.0000)),
    7: ((0.3535, -2.4742), (0.3536, -2.4749), (0.3780, -2.6458)),
}


@pytest.mark.parametrize("successes", GOLDEN)
def test_conventions_of_other_libraries(successes):
    rewards = jnp.array([1.0] * successes + [0.0] * (8 - successes))
    settings = ({"eps": 1e-4}, {"eps": 1e-8}, {"eps": 1e-8, "ddof": 0})
    for keywords, expected in zip(settings, GOLDEN[successes], strict=True):
        advantages = group_mean_std(rewards, **keywords)
        np.testing.assert_allclose(advantages[jnp.array([0, 7])], expected, atol=6e-5)


@pytest.mark.parametrize("function", CENTRED)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.7, 1e-8, 1e8])
def test_uniform_group_is_exactly_zero_when_centred(function, value):
    for size in (2, 3, 5, 7):
        assert np.all(np.asarray(function(jnp.full((size,), value))) == 0.0)


@pytest.mark.parametrize("function", CENTRED)
def test_gradient_is_finite_on_a_uniform_group(function):
    gradient = jax.jacobian(function)(jnp.ones(4))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("function", CENTRED + FIXED)
def test_leading_axes_jit_and_vmap_agree(function):
    rewards = jax.random.bernoulli(jax.random.key(0), 0.4, (3, 5, 4)).astype(jnp.float32)
    by_row = jnp.stack([jnp.stack([function(group) for group in block]) for block in rewards])
    # One instruction may be fused differently from another: equal to the last bit but one.
    np.testing.assert_allclose(jax.jit(function)(rewards), by_row, rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(jax.vmap(function)(rewards), by_row, rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("function", CENTRED)
def test_group_of_one_is_refused_by_name(function):
    with pytest.raises(UserError, match=f"{function.__name__}.*is 1, accepted is 2 or more"):
        function(jnp.ones((3, 1)))


@pytest.mark.parametrize("name", ["sign", "group_mean"])
def test_expected_update_is_a_multiple_of_the_success_gradient(name):
    """Enumerates all groups of 4: the expected sum of A_i grad log pi is c * grad p, with the constants of theory.

    With p = sigmoid(theta), grad log pi is (1 - p) on success and -p on failure, and grad p = p (1 - p).
    """
    p, size = 0.3, 4
    groups = jnp.array([[(i >> j) & 1 for j in range(size)] for i in range(2**size)], jnp.float32)
    chance = jnp.prod(jnp.where(groups == 1, p, 1 - p), -1)
    score = jnp.where(groups == 1, 1 - p, -p)
    expected = jnp.sum(chance[:, None] * OBJECTIVES[name].advantage(groups) * score)
    multiple = {"sign": 2 * size, "group_mean": size - 1}[name]
    np.testing.assert_allclose(expected, multiple * p * (1 - p), rtol=1e-5)


def test_sign_on_all_wrong_groups_ascends_pass_at_g():
    """P(all wrong) * E[-sum grad log pi | all wrong] equals the gradient of 1 - (1 - p)^G."""
    p, size = 0.3, 4
    score_of_wrong = -p
    update = (1 - p) ** size * float(sign(jnp.zeros(size)).sum()) * score_of_wrong
    pass_at_g = jax.grad(lambda theta: 1 - (1 - jax.nn.sigmoid(theta)) ** size)
    np.testing.assert_allclose(update, pass_at_g(jnp.log(p / (1 - p))), rtol=1e-5)
