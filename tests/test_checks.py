"""Values are refused where they are known, and by checkify where they are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from rlvr_jax.checks import require_binary, require_finite, traced_checks
from rlvr_jax.errors import UserError


@pytest.mark.parametrize("form", [list, tuple, np.array, jnp.array])
def test_bad_values_are_named_with_their_place(form):
    rewards = [[0.0, 1.0, 0.5], [1.0, 0.0, np.nan]]
    with pytest.raises(UserError) as refused:
        require_finite("sign", form(rewards))
    expected = "rewards of sign are nan at [1, 2]: accepted are finite numbers; mark missing ones in mask"
    assert str(refused.value) == expected
    with pytest.raises(UserError, match=r"rewards of sign are 0\.5 at \[0, 2\]: accepted are 0 and 1"):
        require_binary("sign", form(rewards))
    mask = [[True, True, False], [True, True, False]]
    require_finite("sign", form(rewards), mask)
    require_binary("sign", form(rewards), np.array(mask))
    require_binary("sign", form([[True, False]]))


@pytest.mark.parametrize("rewards", [[[0, 1], [1]], [["a"]], None, [None]])
def test_what_are_no_numbers_is_refused(rewards):
    with pytest.raises(UserError, match="rewards of sign"):
        require_finite("sign", rewards)


@pytest.mark.parametrize("check", [require_finite, require_binary])
def test_traced_values_are_seen_by_checkify_alone(check):
    def total(rewards, mask=None):
        check("a {name}", rewards, mask)
        return jnp.sum(jnp.where(jnp.isfinite(rewards), rewards, 0))

    bad = jnp.array([[0.0, 1.0], [jnp.inf, 1.0]])
    for transform in (jax.jit, jax.grad, jax.vmap, lambda f: jax.jit(jax.grad(f)), jax.checkpoint):
        transform(total)(bad)
    error, _ = checkify.checkify(jax.jit(total))(bad)
    assert "rewards of a {name} are inf: accepted are" in error.get()
    error, _ = jax.jit(checkify.checkify(total))(bad, bad < 2)
    assert error.get() is None
    error, _ = checkify.checkify(jax.jit(lambda x: check("list", [x, 0.0])))(jnp.nan)
    assert "are nan" in error.get()


def test_checks_can_be_left_out_of_what_is_compiled():
    @jax.jit
    def total(rewards):
        require_finite("total", rewards)
        return rewards.sum()

    bad = jnp.array([jnp.nan])
    with traced_checks(False):
        assert not total.trace(bad).jaxpr.effects
        assert checkify.checkify(total)(bad)[0].get() is None
        with pytest.raises(UserError, match="rewards of x are nan"):
            require_finite("x", bad)
    assert total.trace(bad).jaxpr.effects
    assert "are nan" in checkify.checkify(total)(bad)[0].get()
