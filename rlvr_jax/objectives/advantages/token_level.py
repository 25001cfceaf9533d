"""Advantages that differ from token to token, step to step or turn to turn: `[..., G, T]` and the like."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.objectives.advantages.groups import Rewards, Valid, advantage, count, missing_to_zero, z_score
from rlvr_jax.records import AnyArray

PerToken = Float[Array, "*batch G T"]
TokenMask = Bool[Array, "*batch G T"]


@advantage(accepts="binary", samples=2)
def zero_variance_entropy(
    rewards: Rewards,
    entropies: PerToken,
    completion_mask: TokenMask,
    mask: Valid = None,
    *,
    alpha: float = 0.1,
    ddof: int = 1,
    eps: float = 1e-6,
) -> PerToken:
    """RL-ZVP: uniform groups get a signal in proportion to token entropy H (nats, of the policy that sampled).

    All right: `+alpha H_t`. All wrong: `-alpha (max_k H_k - H_t)`, the maximum over the completion. Mixed: the z-score.
    Source: arXiv 2509.21880, alpha 0.1 or 0.2.
    """
    right = missing_to_zero(rewards, mask).sum(-1)[..., None, None]
    n = jnp.asarray(count(rewards, mask))[..., None]
    h = jnp.where(completion_mask, entropies, 0.0)
    surprise = h.max(-1, keepdims=True) - h
    uniform = jnp.where(right == 0, -alpha * surprise, alpha * h)
    mixed = z_score(rewards, mask, ddof, eps)[..., None]
    return jnp.where(completion_mask, jnp.where((right > 0) & (right < n), mixed, uniform), 0.0)


def future_kl(
    advantages: Float[AnyArray, "*batch T"],
    log_probabilities: Float[AnyArray, "*batch T"],
    behaviour_log_probabilities: Float[AnyArray, "*batch T"],
    completion_mask: Bool[AnyArray, "*batch T"],
    *,
    half_life: float = 32.0,
    lowest: float = 1.0,
    highest: float = 1.2,
    ratio_cap: float = 10.0,
) -> Float[Array, "*batch T"]:
    """FIPO: token advantages times `clip(exp(F_t), lowest, highest)`, F_t how much likelier the rest has become.

    `F_t = sum_{k >= t} M_k g^(k - t) d_k` with `d = log pi - log pi_behaviour`, `g = 2^(-1 / half_life)` and M_k false
    where the ratio is above `ratio_cap`. Where A < 0 and the ratio is above it, the factor is 1. Nothing is
    differentiated through the factor, so on the first update (d = 0) it is 1. Source: arXiv 2603.19835 (32B settings).
    """
    inputs = (log_probabilities, behaviour_log_probabilities)
    log_probabilities, behaviour = (jnp.where(completion_mask, jnp.asarray(x, jnp.float32), 0.0) for x in inputs)
    change = jax.lax.stop_gradient(log_probabilities - behaviour)
    high = change > jnp.log(ratio_cap)
    decay = 2.0 ** (-1.0 / half_life)

    # A linear recurrence backwards in time, F_t = x_t + decay F_{t+1}, in log T steps.
    def combine(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    moved = jnp.where(high, 0.0, change)
    _, future = jax.lax.associative_scan(
        combine, (jnp.full_like(moved, decay), moved), reverse=True, axis=moved.ndim - 1
    )
    factor = jnp.clip(jnp.exp(jnp.clip(future, -20.0, 20.0)), lowest, highest)
    advantages = jnp.where(completion_mask, jnp.asarray(advantages, jnp.float32), 0.0)
    return advantages * jnp.where(high & (advantages < 0), 1.0, factor)


@advantage(accepts="binary", samples=2)
def step_scores(
    rewards: Rewards,
    scores: Float[Array, "*batch G S"],
    step_mask: Bool[Array, "*batch G S"],
    mask: Valid = None,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Array, "*batch G S"]:
    """VeriGate: an all-wrong group is judged step by step from a process reward model's `scores`.

    There every step has the z-score of its future sum `sum_{k >= j} scores_k` among all steps of the group. Mixed
    groups have the z-score of their rewards on every step, all-right ones 0. A token takes the value of its step:
    `jnp.take_along_axis(advantages, step_of_token, -1)`. Future sums are larger for early steps by construction.
    Source: arXiv 2605.30451.
    """
    valid = step_mask if mask is None else step_mask & mask[..., None]
    kept = jnp.where(valid, scores, 0.0)
    future = jnp.flip(jnp.cumsum(jnp.flip(kept, -1), -1), -1)
    flat = (*future.shape[:-2], future.shape[-2] * future.shape[-1])
    by_step = z_score(future.reshape(flat), valid.reshape(flat), ddof, eps).reshape(future.shape)
    right = missing_to_zero(rewards, mask).sum(-1)[..., None, None]
    outcome = z_score(rewards, mask, ddof, eps)[..., None]  # 0 in an all-right group
    return jnp.where(valid, jnp.where(right == 0, by_step, outcome), 0.0)


@advantage(samples=2)
def turn_gain(
    rewards: Rewards,
    gains: Float[Array, "*batch G U"],
    mask: Valid = None,
    *,
    weight: float | Float[Array, ""] = 0.1,
    limit: float = 50.0,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Array, "*batch G U+1"]:
    """CIGPO: information gains of the turns before the last, z-scored apart from the outcome of the last.

    `gains[..., G, U]` are `log p(gold | evidence so far)` minus the same before the turn, in nats, held within
    +-`limit`; each turn's are z-scored over the group and times `weight` (0.1 to 0.3 over training in the paper).
    The last column is the z-score of `rewards`, the final answers' scores. Z-scored apart, a group of equally wrong
    answers still tells good searches from bad ones. Source: arXiv 2607.16244; that turns are compared with the same
    turn of the other samples is our reading.
    """
    by_turn = jnp.swapaxes(jnp.clip(gains, -limit, limit), -1, -2)
    valid = None if mask is None else jnp.broadcast_to(mask[..., None, :], by_turn.shape)
    scored = weight * jnp.swapaxes(z_score(missing_to_zero(by_turn, valid), valid, ddof, eps), -1, -2)
    return jnp.concatenate([scored, z_score(rewards, mask, ddof, eps)[..., None]], -1)
