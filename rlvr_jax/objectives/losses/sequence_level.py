"""Surrogates that look at a whole completion or group: each token of it carries the loss of all."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.objectives.losses.surrogate import Mask, PerToken, log_ratio, sequence_mean_of, surrogate
from rlvr_jax.records import AnyArray


@surrogate
def gspo(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> PerToken:
    """GSPO: `ppo_clip` on the length-normalised sequence ratio `s = (pi(y) / pi_behaviour(y))^(1 / |y|)`.

    Source: arXiv 2507.18071.
    """
    ratio = jnp.exp(log_ratio(*_means(log_probabilities, behaviour_log_probabilities, mask)))
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages)


@surrogate
def gspo_token(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> PerToken:
    """GSPO's token form, ratio `sg(s) pi / sg(pi)`: the value of `gspo`, with advantages that may differ by token.

    With one advantage per sequence its gradient under `sequence_mean` is that of `gspo`. Source: arXiv 2507.18071.
    """
    sequence = jax.lax.stop_gradient(log_ratio(*_means(log_probabilities, behaviour_log_probabilities, mask)))
    ratio = jnp.exp(sequence + log_probabilities - jax.lax.stop_gradient(log_probabilities))
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages)


@surrogate
def gmpo(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> PerToken:
    """GMPO: the geometric mean of token ratios that were clipped first, one-sidedly, in log space.

    `d' = sgn(A) min(sgn(A) d, sgn(A) clip(d, -clip_low, clip_high))`, loss `-exp(mean d') A`; GSPO clips after the
    mean instead. Source: arXiv 2507.20673.
    """
    side = jnp.sign(advantages)
    change = log_ratio(log_probabilities, behaviour_log_probabilities)
    clipped = side * jnp.minimum(side * change, side * jnp.clip(change, -clip_low, clip_high))
    return -jnp.exp(sequence_mean_of(clipped, mask)) * advantages


@surrogate
def topr(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    level: Literal["sequence", "token"] = "sequence",
) -> PerToken:
    """TOPR: `-A log pi` where A > 0, `-sg(clip(w, 0, 1)) A log pi` elsewhere.

    What is wrong stops mattering once it is unlikely, so old samples stay safe. w is the ratio of whole sequences (not
    length-normalised), or of tokens. Source: arXiv 2503.14286.
    """
    change = log_probabilities - behaviour_log_probabilities
    if level == "sequence":
        change = change.sum(-1, keepdims=True)
    elif level != "token":
        raise UserError(f"level is {level!r}, accepted are sequence, token")
    weight = jax.lax.stop_gradient(jnp.exp(jnp.minimum(change, 0.0)))
    return -jnp.where(advantages > 0, 1.0, weight) * advantages * log_probabilities


@surrogate
def c2gspg(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    rewards: Float[AnyArray, "*batch"],
    *,
    beta: float = 0.01,
    eps: float = 1e-6,
) -> PerToken:
    """C2GSPG: `-A log c - beta (r log c + (1 - r) log(1 - c))`, c = exp(mean log pi) the confidence of a completion.

    `rewards[...]` are 0 or 1, `advantages` those of `advantages.c2gspg`. The regulariser keeps a signal of size beta in
    uniform groups. No ratio, no clipping. Source: arXiv 2509.23129.
    """
    c = jnp.clip(jnp.exp(sequence_mean_of(log_probabilities, mask)), eps, 1.0 - eps)
    r = jnp.asarray(rewards, jnp.float32)[..., None]
    return -advantages * jnp.log(c) - beta * (r * jnp.log(c) + (1.0 - r) * jnp.log1p(-c))


@surrogate
def real(
    log_probabilities: Float[Array, "*batch G T"],
    behaviour_log_probabilities: Float[Array, "*batch G T"],
    advantages: Float[Array, "*batch G T"],
    mask: Bool[Array, "*batch G T"],
    rewards: Float[AnyArray, "*batch G"],
    *,
    tau: float = 0.5,
) -> Float[Array, "*batch G T"]:
    """REAL, rewards as labels: `log(1 + sum_right exp(-s / tau)) + log(1 + sum_wrong exp(s / tau))` for each group.

    s is a completion's mean log-ratio to the behaviour policy; `rewards` are 0 or 1 and `advantages` are not used.
    Uniform groups keep a signal. Completions without tokens are left out. Source: arXiv 2602.05630, as in ms-swift.
    """
    present = mask.any(-1)
    right = jnp.asarray(rewards, jnp.float32) > 0.5
    s = log_ratio(*_means(log_probabilities, behaviour_log_probabilities, mask))[..., 0] / tau
    # log(1 + sum exp x) is a log-sum-exp over x and 0.
    group = sum(
        jax.nn.logsumexp(_with_zero(jnp.where(present & chosen, x, -1e30)), axis=-1)
        for chosen, x in ((right, -s), (~right, s))
    )
    return jnp.broadcast_to(group[..., None, None], mask.shape)


def hidden_align(
    states: Float[AnyArray, "*batch G D"],
    rewards: Float[AnyArray, "*batch G"],
    mask: Bool[AnyArray, "*batch G"] | None = None,
) -> Float[Array, "*batch"]:
    """Hidden-Align: minus the mean cosine between the right completions' hidden states at the anchor token.

    `states[..., G, D]` are last-layer states just before the answer marker. 0 in groups with fewer than two right
    samples. An auxiliary loss, to be added with a weight of yours: the paper's, and whether one side is detached, are
    not public (here neither is). Source: arXiv 2606.03234.
    """
    chosen = jnp.asarray(rewards, jnp.float32) > 0.5
    if mask is not None:
        chosen &= jnp.asarray(mask, bool)
    states = jnp.where(chosen[..., None], jnp.asarray(states, jnp.float32), 0.0)
    squares = jnp.sum(states**2, -1, keepdims=True)
    unit = states * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1.0))
    # The sum over pairs i != j is |sum of units|^2 minus the sum of |unit|^2.
    pairs = jnp.sum(unit.sum(-2) ** 2, -1) - jnp.sum(unit**2, (-2, -1))
    n = chosen.sum(-1).astype(jnp.float32)
    return jnp.where(n >= 2, -pairs / jnp.maximum(n * (n - 1.0), 1.0), 0.0)


def _means(log_probabilities: PerToken, behaviour: PerToken, mask: Mask) -> tuple[Array, Array]:
    return sequence_mean_of(log_probabilities, mask), sequence_mean_of(behaviour, mask)


def _with_zero(x: Float[Array, "*batch G"]) -> Float[Array, "*batch G+1"]:
    return jnp.concatenate([x, jnp.zeros_like(x[..., :1])], -1)
