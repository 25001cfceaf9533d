"""What all surrogates share: log-probabilities come in clean, a loss for each token goes out.

Sequence- and group-level losses are given to each of their tokens, so that `aggregate(..., "sequence_mean")` of them is
the mean over sequences that their papers write.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

PerToken = Float[Array, "*batch T"]
Mask = Bool[Array, "*batch T"]
Function = TypeVar("Function", bound=Callable[..., Any])

_LARGEST_LOG_RATIO = 20.0


def surrogate(formula: Function) -> Function:
    """Makes a formula on clean arrays into a public surrogate.

    `(log_probabilities, behaviour_log_probabilities, advantages, mask, ...)`, each `[..., T]`, to losses `[..., T]`.
    Floats become float32; masked places are set to 0 before the formula, since what they hold may be infinite and would
    turn the *gradient* into NaN even under a mask afterwards. They come out as 0. The behaviour policy's
    log-probabilities and the advantages are constants of the differentiation. Compiled as one piece.
    """
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def public(*args: Any, **kwargs: Any) -> Any:
        inputs = signature.bind(*args, **kwargs).arguments
        inputs["mask"] = jnp.asarray(inputs["mask"], bool)
        for name in ("log_probabilities", "behaviour_log_probabilities", "advantages", "rewards"):
            if name in inputs:
                inputs[name] = jnp.asarray(inputs[name], jnp.float32)
        arrays = {name: value for name, value in inputs.items() if isinstance(value, jax.Array)}
        settings = {name: value for name, value in inputs.items() if name not in arrays}
        return _compiled(arrays, formula=formula, settings=tuple(settings.items()))

    return public


@functools.partial(jax.jit, static_argnames=("formula", "settings"))
def _compiled(arrays: dict[str, Array], *, formula: Callable[..., Any], settings: tuple[tuple[str, Any], ...]) -> Array:
    mask = arrays["mask"]
    for name in ("log_probabilities", "behaviour_log_probabilities", "advantages"):
        arrays = arrays | {name: jnp.where(mask, jnp.broadcast_to(arrays[name], mask.shape), 0.0)}
    for name in ("behaviour_log_probabilities", "advantages"):
        arrays = arrays | {name: jax.lax.stop_gradient(arrays[name])}
    return jnp.where(mask, formula(**arrays, **dict(settings)), 0.0)


def log_ratio(log_probabilities: PerToken, behaviour_log_probabilities: PerToken) -> PerToken:
    """`log pi - log pi_behaviour`, held within +-20 so that its exponential is finite (as verl does)."""
    return jnp.clip(log_probabilities - behaviour_log_probabilities, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def sequence_mean_of(values: PerToken, mask: Mask) -> Float[Array, "*batch 1"]:
    """Mean over the tokens of each sequence, 0 for an empty one. Masked places must hold 0."""
    return values.sum(-1, keepdims=True) / jnp.maximum(mask.sum(-1, keepdims=True), 1)
