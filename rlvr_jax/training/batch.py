"""From graded rollouts to the batch of an update: advantages and the tokens that count."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from rlvr_jax.models import token_log_probabilities
from rlvr_jax.objectives import Objective, rollout_signals
from rlvr_jax.records import AnyArray, Batch, Prompts, Rollouts
from rlvr_jax.sharding import batch_shards
from rlvr_jax.training.update import UpdateSettings


@functools.partial(jax.jit, static_argnames="objective")
def make_batch(
    prompts: Prompts,
    rollouts: Rollouts,
    rewards: Float[AnyArray, "P G"],
    reference_log_probabilities: Float[AnyArray, "P G T"] | None,
    state: PyTree,
    *,
    objective: Objective,
) -> tuple[Batch, Any]:
    """The batch, and the objective's state after it.

    `reference_log_probabilities` are needed with a KL in the reward; `state` by an objective that remembers.
    """
    signals = rollout_signals(rewards, rollouts.log_probabilities, rollouts.entropies, rollouts.mask)
    if reference_log_probabilities is not None:
        signals["reference_log_probabilities"] = reference_log_probabilities
    advantages, state = objective.advantages(signals, state)
    if advantages.ndim == 2:
        advantages = jnp.broadcast_to(advantages[..., None], rollouts.mask.shape)
    loss_mask = objective.loss_mask(rollouts.mask, rewards, rollouts.truncated)
    return Batch(prompts, rollouts, signals["rewards"], advantages, loss_mask), state


@functools.partial(jax.jit, static_argnames=("settings", "mesh"))
def trainer_log_probabilities(
    params: PyTree,
    prompts: Prompts,
    tokens: Int[AnyArray, "P G T"],
    prefix: Int[AnyArray, " Tq"],
    temperature: Float[Array, ""],
    *,
    settings: UpdateSettings,
    mesh: Mesh,
) -> Float[Array, "P G T"]:
    """Log-probabilities of sampled tokens under `params`, at the temperature they were sampled at."""
    rows = batch_shards(mesh)
    return token_log_probabilities(
        params,
        prefix,
        prompts,
        tokens,
        temperature,
        config=settings.model,
        rows=rows,
        remat=settings.remat,
        mesh=mesh,
        fused_attention=settings.fused_attention,
    )
