"""Advantages that remember: each takes its state and returns it updated, `(advantages, state)`.

States are records of arrays (pytrees), so that they travel in a training state and a checkpoint. The baseline is
always the one from before the batch: what a sample is compared with must not depend on the sample.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rlvr_jax.objectives.advantages.groups import (
    AxisName,
    BatchRewards,
    BatchValid,
    advantage,
    batch_deviation,
    centred,
    count,
    from_batch_mean,
    mean,
    missing_to_zero,
    safe_sqrt,
    total,
    weights_of,
    z_score,
)
from rlvr_jax.records import AnyArray, record


@record
class BetaTracker:
    """Of each prompt, a Beta(alpha, beta) belief about its success rate."""

    alpha: Float[AnyArray, "*batch P"]
    beta: Float[AnyArray, "*batch P"]

    @property
    def value(self) -> Float[Array, "*batch P"]:
        """The expected success rate, SPO's baseline."""
        return jnp.asarray(self.alpha / (self.alpha + self.beta))

    @property
    def sampling_weights(self) -> Float[Array, "*batch P"]:
        """How often to draw each prompt: `sqrt(v (1 - v)) + 0.05`, not normalised."""
        return jnp.sqrt(self.value * (1.0 - self.value)) + 0.05


def start_beta_tracker(
    right: Num[AnyArray, "*batch P"] | list, samples: int = 8, *, forgetting: float = 0.875
) -> BetaTracker:
    """A tracker from `right[..., P]` successes among `samples` rollouts of each prompt, made before training.

    Its weight is `1 / (1 - forgetting)` observations, the most that a prompt which forgets so can hold. With
    `samples=0` (and zeros) it starts at one half. Source: arXiv 2509.13232.
    """
    weight = 1.0 / (1.0 - forgetting)
    rate = (jnp.asarray(right, jnp.float32) + 0.5) / (samples + 1.0)
    return BetaTracker(weight * rate, weight * (1.0 - rate))


@advantage()
def single_stream(
    rewards: BatchRewards,
    state: BetaTracker,
    divergence: Float[Array, "*batch P"],
    mask: BatchValid = None,
    *,
    half_life: float = 0.06,
    least_memory: float = 0.875,
    most_memory: float = 0.96,
    whiten: bool = True,
    eps: float = 1e-8,
    axis_name: AxisName = None,
) -> tuple[BatchRewards, BetaTracker]:
    """SPO: `A = r - v`, v the prompt's tracked success rate, whitened over the batch.

    `divergence[..., P]` is how far the policy has moved since the prompt was last seen: the mean absolute change of
    the log-probabilities of its previous completion, in nats. The tracker forgets by `2^(-divergence / half_life)`,
    kept in [least_memory, most_memory], then adds the outcomes. Made for G = 1; with more samples all are added
    (ours). Rewards in [0, 1]. Source: arXiv 2509.13232.
    """
    difference = missing_to_zero(rewards - state.value[..., None], mask)
    memory = jnp.clip(2.0 ** (-divergence / half_life), least_memory, most_memory)
    right, wrong = (missing_to_zero(x, mask).sum(-1) for x in (rewards, 1.0 - rewards))
    updated = BetaTracker(memory * state.alpha + right, memory * state.beta + wrong)
    if mask is not None:  # a prompt without any outcome learns and forgets nothing
        seen = mask.any(-1)
        updated = BetaTracker(jnp.where(seen, updated.alpha, state.alpha), jnp.where(seen, updated.beta, state.beta))
    return _batch_whitened(difference, mask, eps, axis_name) if whiten else difference, updated


@record
class ShrinkageState:
    """Running moments of all groups seen."""

    groups: Float[AnyArray, "*batch"]
    mean: Float[AnyArray, "*batch"]
    """Mean of the group means."""
    squares: Float[AnyArray, "*batch"]
    """Sum of squared distances of the group means from their mean (Welford)."""
    within: Float[AnyArray, "*batch"]
    """Mean of the groups' own unbiased variances."""


def start_shrinkage(batch_shape: tuple[int, ...] = ()) -> ShrinkageState:
    """Nothing seen yet: the first batch is compared with its own group means."""
    zero = jnp.zeros(batch_shape, jnp.float32)
    return ShrinkageState(zero, zero, zero, zero)


@advantage(samples=2)
def shrinkage(
    rewards: BatchRewards,
    state: ShrinkageState,
    mask: BatchValid = None,
    *,
    whiten: bool = True,
    eps: float = 1e-8,
    axis_name: AxisName = None,
) -> tuple[BatchRewards, ShrinkageState]:
    """EBPO: minus the group's mean drawn towards the mean of all, `V = (1 - S) mean(r) + S mean_all`.

    `S = (s2 / G) / (s2 / G + t2)` with s2 the variance within groups and t2 that of the group means, both over what
    came before; then whitened over the batch. A uniform group keeps a signal: minus V when wrong, 1 - V when right.
    Source: arXiv 2602.05165. That the moments are those of earlier batches is our reading.
    """
    n = count(rewards, mask)
    m = mean(rewards, mask)
    own = centred(rewards, mask)
    mean_all, squares, within, groups = (
        x[..., None, None] for x in (state.mean, state.squares, state.within, state.groups)
    )
    between = squares / jnp.maximum(groups - 1.0, 1.0)
    error = within / jnp.maximum(n, 1.0)
    weight = jnp.where(error > 0, error / jnp.where(error > 0, error + between, 1.0), 0.0)
    # (1 - S) (r - mean) + S (r - mean_all): exactly 0 in a uniform group while nothing else is known.
    difference = missing_to_zero((1.0 - weight) * own + weight * (rewards - mean_all), mask)

    present = jnp.ones_like(m) if mask is None else mask.any(-1, keepdims=True).astype(jnp.float32)
    new = total(present, axis_name)
    new_mean = total(m * present, axis_name) / jnp.maximum(new, 1.0)
    new_squares = total(present * (m - new_mean) ** 2, axis_name)
    variance = jnp.sum(own**2, -1, keepdims=True) / jnp.maximum(n - 1.0, 1.0)
    all_groups = jnp.maximum(groups + new, 1.0)
    updated = (
        groups + new,
        mean_all + (new_mean - mean_all) * new / all_groups,
        squares + new_squares + (new_mean - mean_all) ** 2 * groups * new / all_groups,
        (within * groups + total(present * variance, axis_name)) / all_groups,
    )
    advantages = _batch_whitened(difference, mask, eps, axis_name) if whiten else difference
    return advantages, ShrinkageState(*(x[..., 0, 0] for x in updated))


@record
class HistoryState:
    """What the policy has been able to do lately."""

    anchor: Float[AnyArray, "*batch"]
    recent: Float[AnyArray, "*batch M"]
    """The last M anchors, the newest last."""
    seen: Float[AnyArray, "*batch"]
    """Batches so far."""


def start_history(window: int, batch_shape: tuple[int, ...] = ()) -> HistoryState:
    """Nothing seen yet. The paper's window is not public, so it must be given."""
    zero = jnp.zeros(batch_shape, jnp.float32)
    return HistoryState(zero, jnp.zeros((*batch_shape, window), jnp.float32), zero)


@advantage(samples=2)
def history_weighted(
    rewards: BatchRewards,
    state: HistoryState,
    mask: BatchValid = None,
    *,
    step_size: float,
    scale: float = 1.3,
    ddof: int = 1,
    eps: float = 1e-6,
    axis_name: AxisName = None,
) -> tuple[BatchRewards, HistoryState]:
    """HA-DW: the z-score times `scale exp(D |p - C|)`, `D = -sgn(A) sgn(p - C)`.

    p is the group's success rate, C the anchor: successes on prompts that are hard for the policy, and failures on
    easy ones, count more. C moves by `eta (accuracy of the batch - C)`, eta = `step_size` times the standard
    deviation of the last M anchors. Source: arXiv 2601.08521; `step_size` and M are not public. Ours: until M batches
    are seen C is their plain mean, since a constant history would never move; in the first batch nothing is weighted.
    """
    p = mean(rewards, mask)
    z = z_score(rewards, mask, ddof, eps)
    distance = jnp.where(state.seen > 0, 1.0, 0.0)[..., None, None] * (p - state.anchor[..., None, None])
    advantages = z * scale * jnp.exp(-jnp.sign(z) * distance)

    valid = weights_of(rewards, mask, None)
    samples = total(valid, axis_name)[..., 0, 0]
    accuracy = total(missing_to_zero(rewards, mask), axis_name)[..., 0, 0] / jnp.maximum(samples, 1.0)
    spread = safe_sqrt(jnp.var(state.recent, -1))
    rate = jnp.where(state.seen < state.recent.shape[-1], 1.0 / (state.seen + 1.0), step_size * spread)
    anchor = jnp.where(samples > 0, state.anchor + rate * (accuracy - state.anchor), state.anchor)
    recent = jnp.concatenate([state.recent[..., 1:], anchor[..., None]], -1)
    return advantages, HistoryState(anchor, recent, state.seen + 1.0)


def _batch_whitened(values: BatchRewards, mask: BatchValid, eps: float, axis_name: AxisName) -> BatchRewards:
    """`(A - mean) / (std + eps)` over the batch, unbiased deviation."""
    weights = weights_of(values, mask, None)
    difference = from_batch_mean(values, weights, axis_name)
    return difference / (batch_deviation(difference, weights, 1, axis_name) + eps)
