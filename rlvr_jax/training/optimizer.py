"""The optimizer: AdamW of clipped gradients, which passes over an update that is not finite."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW with linear warm-up to a constant rate, gradients clipped by their global norm."""

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    max_gradient_norm: float


def clip_by_global_norm(maximum: float) -> optax.GradientTransformation:
    """As `optax.clip_by_global_norm`, as a product with one scalar.

    XLA fuses a product into the moments' updates, where optax's division makes it write out the clipped gradient:
    a copy of all weights.
    """

    def clip(gradients: PyTree, _: PyTree) -> PyTree:
        scale = jnp.minimum(1.0, maximum / jnp.maximum(optax.tree.norm(gradients), 1e-30))
        return jax.tree.map(lambda gradient: gradient * scale, gradients)

    return optax.stateless(clip)


def adamw(
    rate: optax.Schedule,
    beta1: float,
    beta2: float,
    *,
    weight_decay: float,
    decayed: Callable[[PyTree], PyTree],
    eps: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """As `optax.adamw`, with `decayed` as its mask, and one count for moments and rate.

    Its `update` takes `finite`: where that is false, neither state nor parameters change. They are kept here, and not
    by a selection between old and new state afterwards, because XLA then copies the old moments before it writes over
    them: on two CPU cores an optimizer step took three times as long, with memory for twice the weights.
    """
    adam = optax.scale_by_adam(beta1, beta2, eps)

    def update(
        gradients: PyTree, state: optax.ScaleByAdamState, params: PyTree, *, finite: Bool[Array, ""] | bool = True
    ) -> tuple[PyTree, optax.ScaleByAdamState]:
        _, new = adam.update(gradients, state)
        new = jax.tree.map(functools.partial(jnp.where, finite), new, state)
        means = optax.tree.bias_correction(new.mu, beta1, new.count)
        variances = optax.tree.bias_correction(new.nu, beta2, new.count)
        step_size = -rate(new.count - 1)

        def step(mean: Array, variance: Array, param: Array, decays: bool) -> Array:
            direction = mean / (jnp.sqrt(variance) + eps) + (weight_decay * param if decays and weight_decay else 0.0)
            return jnp.where(finite, step_size * direction, 0.0)

        return jax.tree.map(step, means, variances, params, decayed(params)), new

    return optax.GradientTransformationExtraArgs(adam.init, update)


def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformationExtraArgs:
    """The optax chain; its `update` takes `finite`, see `adamw`.

    Update i (from 0) of the warm-up has rate `learning_rate * (i + 1) / warmup_steps`.
    """
    warmup = max(settings.warmup_steps, 1)
    schedule = optax.schedules.linear_schedule(settings.learning_rate / warmup, settings.learning_rate, warmup - 1)

    def decayed(params: PyTree) -> PyTree:
        undecayed = ("scale", "bias")
        return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(undecayed), params)

    return optax.chain(
        clip_by_global_norm(settings.max_gradient_norm),
        adamw(schedule, settings.beta1, settings.beta2, weight_decay=settings.weight_decay, decayed=decayed),
    )
