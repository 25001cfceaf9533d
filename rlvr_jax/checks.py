"""Checks of the values of rewards: an error where the values are known, a debug check where they are traced.

Inside jit, vmap and grad values are not known, so there the check is `jax.experimental.checkify.debug_check`: it
computes nothing and finds nothing, unless the caller functionalises it with
`checkify.checkify(function, errors=checkify.user_checks)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.errors import UserError

traced_checks = jax.make_user_context(True)
"""`with traced_checks(False):` leaves the checks out of what is compiled inside.

JAX calls a compiled function that holds a check through a slower door: 0.2 ms instead of 0.02 for each call from
Python. That matters only where one advantage is called by itself, again and again.
"""


def require_finite(name: str, rewards: Any, mask: Any = None) -> None:
    """Every reward is a finite number.

    Arguments:
      name: of the function that asks; it stands in the message.
      rewards: numbers, any shape: list, NumPy or JAX array, or tracer.
      mask: True on the rewards that count, broadcastable to them; None means all.

    Raises UserError with the first bad value and its place. An array that lies partly on other hosts is not checked.
    """
    _require(name, rewards, mask, lambda xp, x: xp.isfinite(x), "finite numbers")


def require_binary(name: str, rewards: Any, mask: Any = None) -> None:
    """Every reward is 0 (wrong) or 1 (right); as `require_finite` in all else."""
    _require(name, rewards, mask, lambda xp, x: (x == 0) | (x == 1), "0 and 1")


def _require(name: str, rewards: Any, mask: Any, is_good: Any, accepted: str) -> None:
    accepted = f"accepted are {accepted}; mark missing ones in mask"
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((rewards, mask))):
        if not traced_checks.value:
            return
        from jax.experimental import checkify

        rewards = jnp.asarray(rewards)
        good = is_good(jnp, rewards) if mask is None else is_good(jnp, rewards) | ~jnp.asarray(mask, bool)
        value = rewards.ravel()[jnp.argmin(good)] if rewards.size else 0
        message = f"rewards of {name}".replace("{", "{{").replace("}", "}}") + " are {value}: " + accepted
        checkify.debug_check(jnp.all(good), message, value=value)
        return
    if any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in (rewards, mask)):
        return
    try:
        rewards = np.asarray(rewards, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"rewards of {name} are not an array of numbers: {accepted}") from None
    bad = ~is_good(np, rewards)
    if mask is not None:
        bad &= np.asarray(mask, bool)
    if bad.any():
        place = np.argwhere(bad)[0]
        raise UserError(f"rewards of {name} are {rewards[tuple(place)]:g} at {place.tolist()}: {accepted}")
