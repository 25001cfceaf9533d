"""The figures of one step before its update."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rlvr_jax.records import Batch
from rlvr_jax.starvation import degeneracy, zero_advantage_share
from rlvr_jax.training.collect import Collected


def batch_metrics(collected: Collected, batch: Batch) -> dict[str, Any]:
    """What a step's rollouts say before any update: of rewards, over all that were sampled."""
    graded, rollouts = collected.graded, batch.rollouts
    groups = degeneracy(collected.rewards)
    trained = jnp.where(batch.loss_mask, batch.advantages, 0.0)
    silent = zero_advantage_share(trained.reshape(len(trained), -1)) * len(trained)
    sampled = len(collected.rewards)
    outcomes = [verdict.outcome for group in graded.verdicts for verdict in group]
    return {
        "reward": collected.rewards.mean(),
        "sampled_groups": sampled,
        "degeneracy": groups.degenerate,
        "degeneracy_predicted": groups.predicted,
        "all_wrong": groups.all_wrong,
        "all_right": groups.all_right,
        "zero_advantage": (silent + sampled - len(trained)) / sampled,
        "unparsable": outcomes.count("unparsable") / len(outcomes),
        "timed_out": outcomes.count("timed-out") / len(outcomes),
        "length": np.mean(graded.lengths),
        "truncated": jnp.mean(rollouts.truncated),
        "entropy": jnp.sum(rollouts.entropies) / jnp.sum(rollouts.mask),
    }
