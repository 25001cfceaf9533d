"""The figures of one step before its update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.records import AnyArray, Batch
from rlvr_jax.starvation import Degeneracy, degeneracy, zero_advantage_share
from rlvr_jax.training.collect import Collected


def batch_metrics(collected: Collected, batch: Batch) -> dict[str, Any]:
    """What a step's rollouts say before any update: of rewards, over all that were sampled."""
    graded, sampled, trained = collected.graded, len(collected.rewards), len(batch.rewards)
    groups, silent_share, truncated, entropy = _on_device(collected.rewards, batch)
    return {
        "reward": collected.rewards.mean(),
        "sampled_groups": sampled,
        "degeneracy": groups.degenerate,
        "degeneracy_predicted": groups.predicted,
        "all_wrong": groups.all_wrong,
        "all_right": groups.all_right,
        "zero_advantage": (silent_share * trained + sampled - trained) / sampled,
        "unparsable": np.mean(graded.outcomes == "unparsable"),
        "timed_out": np.mean(graded.outcomes == "timed-out"),
        "length": np.mean(graded.lengths),
        "truncated": truncated,
        "entropy": entropy,
    }


@jax.jit
def _on_device(rewards: Float[AnyArray, "N G"], batch: Batch) -> tuple[Degeneracy, Array, Array, Array]:
    """As one program: operation by operation, compiling them took as long as a step."""
    rollouts = batch.rollouts
    trained = jnp.where(batch.loss_mask, batch.advantages, 0.0)
    return (
        degeneracy(rewards),
        zero_advantage_share(trained.reshape(len(trained), -1)),
        jnp.mean(rollouts.truncated),
        jnp.sum(rollouts.entropies) / jnp.sum(rollouts.mask),
    )
