"""What all advantages share: how rewards come in and advantages go out, and the statistics of a group in between.

Two facts are kept here, once, for every method:

* *A centred advantage of a uniform group is exactly zero.* Rewards are measured from one of the group's own, so in
  a uniform group all differences are zeros and no rounding is left to be magnified by a division.
* *Nothing unknown becomes an advantage.* A sample that `mask` marks as missing enters no statistic and gets 0. A
  reward that is not a finite number is an error where values are known; inside jit, where they are not, it is
  reported by `checkify` and otherwise every advantage that it would have touched is 0, never NaN, and every number
  of a memory that it would have touched stays as it was.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rlvr_jax.checks import require_binary, require_finite
from rlvr_jax.errors import UserError

Rewards = Float[Array, "*batch G"]
Valid = Bool[Array, "*batch G"] | None
BatchRewards = Float[Array, "*batch P G"]
BatchValid = Bool[Array, "*batch P G"] | None
AxisName = str | tuple[str, ...] | None
Function = TypeVar("Function", bound=Callable[..., Any])
_ARRAYS = (list, tuple, np.ndarray, np.generic, jax.Array)


def advantage(*, accepts: Literal["finite", "binary"] = "finite", samples: int = 1) -> Callable[[Function], Function]:
    """Makes a formula on clean arrays into a public advantage function.

    The formula receives rewards in float32 with 0 at missing places, other arrays in float32 or bool, and may return
    anything at missing places. `accepts`: which rewards have a meaning. `samples`: the least G; a method that
    compares the samples of a prompt needs 2. Both raise UserError. The formula is compiled as one piece, with its
    settings built in, unless a setting is an array.
    """

    def decorate(formula: Function) -> Function:
        signature = inspect.signature(formula)
        first = next(iter(signature.parameters))

        @functools.wraps(formula)
        def public(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            inputs = bound.arguments
            require = require_finite if accepts == "finite" else require_binary
            require(formula.__name__, inputs[first], inputs.get("mask"))
            for name, value in inputs.items():
                # Keyword-only parameters are settings, unless they are arrays already.
                is_input = signature.parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
                kinds = (*_ARRAYS, int, float) if is_input else _ARRAYS
                if isinstance(value, kinds):
                    inputs[name] = jnp.asarray(value, bool if name.endswith("mask") else jnp.float32)
            if "state" in inputs:
                inputs["state"] = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), inputs["state"])
            rewards, mask = inputs[first], inputs.get("mask")
            _require_samples(formula.__name__, rewards, samples)
            if mask is not None:
                inputs["mask"] = mask = jnp.broadcast_to(mask, rewards.shape)
                inputs[first] = jnp.where(mask, rewards, 0.0)
            arrays = {name: value for name, value in inputs.items() if name == "state" or isinstance(value, jax.Array)}
            settings = {name: value for name, value in inputs.items() if name not in arrays}
            return _compiled(arrays, formula=formula, settings=tuple(settings.items()))

        public.accepts = accepts
        return public

    return decorate


@functools.partial(jax.jit, static_argnames=("formula", "settings"))
def _compiled(arrays: dict[str, Any], *, formula: Callable[..., Any], settings: tuple[tuple[str, Any], ...]) -> Any:
    result, mask = formula(**arrays, **dict(settings)), arrays.get("mask")
    if not isinstance(result, tuple):
        return _without_unknowns(result, mask)
    advantages, state = result
    # A memory keeps what it had rather than become unknown.
    state = jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new, old), state, arrays["state"])
    return _without_unknowns(advantages, mask), state


def _require_samples(name: str, rewards: Array, least: int) -> None:
    if rewards.ndim == 0 or rewards.shape[-1] < least:
        samples = rewards.shape[-1] if rewards.ndim else 0
        raise UserError(
            f"{name} compares the samples of one prompt: samples per prompt is {samples}, accepted is {least} or more"
        )


def _without_unknowns(result: Array, mask: Array | None) -> Array:
    known = jnp.isfinite(result)
    if mask is not None:
        known &= mask.reshape(mask.shape + (1,) * (result.ndim - mask.ndim))
    return jnp.where(known, result, 0.0)


def count(rewards: Rewards, mask: Valid) -> Float[Array, "*batch 1"] | float:
    """Valid samples of each group."""
    return float(rewards.shape[-1]) if mask is None else mask.sum(-1, keepdims=True).astype(jnp.float32)


def mean(values: Rewards, mask: Valid) -> Float[Array, "*batch 1"]:
    """Mean over the valid samples, 0 where there are none. Missing places must hold 0."""
    return values.sum(-1, keepdims=True) / jnp.maximum(count(values, mask), 1.0)


def anchor(rewards: Rewards, mask: Valid) -> Float[Array, "*batch 1"]:
    """One of the group's own rewards; 0 where there is none."""
    if mask is None:
        return rewards[..., :1]
    largest = jnp.max(jnp.where(mask, rewards, -jnp.inf), -1, keepdims=True)
    return jnp.where(mask.any(-1, keepdims=True), largest, 0.0)


def from_anchor(rewards: Rewards, mask: Valid) -> Rewards:
    """Rewards measured from one of the group's own: all exactly 0 in a uniform group, 0 where missing."""
    return missing_to_zero(rewards - anchor(rewards, mask), mask)


def centred(rewards: Rewards, mask: Valid) -> Rewards:
    """`r - mean(r)`, exactly 0 in a uniform group."""
    difference = from_anchor(rewards, mask)
    return missing_to_zero(difference - mean(difference, mask), mask)


def deviation(difference: Rewards, mask: Valid, ddof: int) -> Float[Array, "*batch 1"]:
    """Standard deviation of values that are already centred; its gradient is 0, not NaN, where it is 0."""
    degrees = jnp.maximum(count(difference, mask) - ddof, 1.0)
    return safe_sqrt(jnp.sum(difference**2, -1, keepdims=True) / degrees)


def safe_sqrt(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Square root whose gradient at 0 is 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def z_score(rewards: Rewards, mask: Valid, ddof: int, eps: float) -> Rewards:
    """`(r - mean(r)) / (std(r) + eps)`, exactly 0 in a uniform group."""
    difference = centred(rewards, mask)
    # A tiny floor under eps = 0 leaves every non-zero deviation as it is.
    return difference / jnp.maximum(deviation(difference, mask, ddof) + eps, 1e-30)


def missing_to_zero(values: Rewards, mask: Valid) -> Rewards:
    return values if mask is None else jnp.where(mask, values, 0.0)


def total(values: Array, axis_name: AxisName, axes: tuple[int, ...] = (-2, -1)) -> Array:
    """Sum over the batch axes, here and on every device of the mapped axes; dimensions are kept."""
    result = jnp.sum(values, axes, keepdims=True)
    return result if axis_name is None else jax.lax.psum(result, axis_name)


def weights_of(rewards: BatchRewards, mask: BatchValid, lengths: BatchRewards | None) -> BatchRewards:
    """How often each sample counts in the batch's statistics."""
    return missing_to_zero(jnp.ones_like(rewards) if lengths is None else lengths, mask)


def from_batch_mean(values: BatchRewards, weights: BatchRewards, axis_name: AxisName) -> BatchRewards:
    """`r - weighted mean of the batch`, exactly 0 where the whole batch is uniform."""
    largest = jnp.max(jnp.where(weights > 0, values, -jnp.inf), (-2, -1), keepdims=True)
    if axis_name is not None:
        largest = jax.lax.pmax(jax.lax.stop_gradient(largest), axis_name)
    reference = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    difference = jnp.where(weights > 0, values - reference, 0.0)
    return difference - total(weights * difference, axis_name) / jnp.maximum(total(weights, axis_name), 1.0)


def batch_deviation(difference: BatchRewards, weights: BatchRewards, ddof: int, axis_name: AxisName) -> Array:
    """Standard deviation over the batch of values that are already centred, dimensions kept."""
    degrees = jnp.maximum(total(weights, axis_name) - ddof, 1.0)
    return safe_sqrt(total(weights * difference**2, axis_name) / degrees)
