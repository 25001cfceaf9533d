"""Surrogates that look at one token at a time. Exactly on-policy all of them have the gradient of `reinforce`."""

import jax
import jax.numpy as jnp

from rlvr_jax.objectives.advantages.token_level import future_kl
from rlvr_jax.objectives.losses.surrogate import Mask, PerToken, log_ratio, surrogate


@surrogate
def reinforce(
    log_probabilities: PerToken, behaviour_log_probabilities: PerToken, advantages: PerToken, mask: Mask
) -> PerToken:
    """REINFORCE, `-A log pi(y_t)`: no ratio and no clipping (Williams 1992). The behaviour policy is not used."""
    return -advantages * log_probabilities


@surrogate
def ppo_clip(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> PerToken:
    """Clipped surrogate, `-min(w A, clip(w, 1 - clip_low, 1 + clip_high) A)` with `w = pi / pi_behaviour`.

    `dual_clip` c > 1 bounds the loss of a negative advantage by `-c A`, however likely the token has become.
    Source: PPO, arXiv 1707.06347, eq. 7; separate bounds as in DAPO, arXiv 2503.14476, eq. 10; dual clip as in verl.
    """
    ratio = jnp.exp(log_ratio(log_probabilities, behaviour_log_probabilities))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is not None:
        gain = jnp.where(advantages < 0, jnp.maximum(gain, dual_clip * advantages), gain)
    return -gain


@surrogate
def fipo(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float = 10.0,
    half_life: float = 32.0,
    lowest: float = 1.0,
    highest: float = 1.2,
) -> PerToken:
    """FIPO: `ppo_clip` with dual clip on advantages weighted by `advantages.future_kl`. Source: arXiv 2603.19835."""
    weighted = future_kl(
        advantages,
        log_probabilities,
        behaviour_log_probabilities,
        mask,
        half_life=half_life,
        lowest=lowest,
        highest=highest,
        ratio_cap=dual_clip,
    )
    return ppo_clip(
        log_probabilities,
        behaviour_log_probabilities,
        weighted,
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


@surrogate
def cispo(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    cap: float = 5.0,
    floor: float = 0.0,
) -> PerToken:
    """CISPO, `-sg(clip(w, floor, cap)) A log pi`: the weight is bounded, no token's gradient is lost.

    `cap` and `floor` are bounds of the weight itself: TRL's `epsilon_high` is our cap, in verl and open-instruct the
    cap is `1 + epsilon_high` (and in verl the floor `1 - epsilon_low`).
    Source: MiniMax-M1, arXiv 2506.13585; the cap of 5 from ScaleRL, arXiv 2510.13786.
    """
    ratio = jnp.exp(log_ratio(log_probabilities, behaviour_log_probabilities))
    weight = jax.lax.stop_gradient(jnp.clip(ratio, floor, cap))
    return -weight * advantages * log_probabilities


@surrogate
def sapo(
    log_probabilities: PerToken,
    behaviour_log_probabilities: PerToken,
    advantages: PerToken,
    mask: Mask,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> PerToken:
    """SAPO: a soft gate instead of a clip, `-A sigmoid(tau (w - 1)) 4 / tau`, tau by the sign of A.

    Source: arXiv 2511.20347.
    """
    ratio = jnp.exp(log_ratio(log_probabilities, behaviour_log_probabilities))
    tau = jnp.where(advantages > 0, tau_positive, tau_negative)
    return -advantages * jax.nn.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau
