"""Advantages that weigh samples by how likely the sampling policy held them.

`sequence_log_probabilities[..., G]` is the sum of a completion's token log-probabilities in nats, `lengths[..., G]`
its tokens. The *confidence* of a completion is `exp(sum / length)`, in [0, 1].
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.objectives.advantages.groups import (
    Rewards,
    Valid,
    advantage,
    centred,
    count,
    missing_to_zero,
    safe_sqrt,
    z_score,
)


def confidences(sequence_log_probabilities: Rewards, lengths: Rewards) -> Rewards:
    """Length-normalised probability, `exp(sum log pi / |y|)`; 1 for an empty completion."""
    return jnp.exp(jnp.minimum(sequence_log_probabilities, 0.0) / jnp.maximum(lengths, 1.0))


@advantage(accepts="binary", samples=2)
def lens(
    rewards: Rewards,
    sequence_log_probabilities: Rewards,
    lengths: Rewards,
    mask: Valid = None,
    *,
    negative_weight: float = 0.25,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Rewards:
    """LENS: wrong answers cost the more the more confident they were, `r - (1 - r) / G * c / (D - c)`.

    c is the confidence; `D = max(D_imp, 2 max c)` with `1 / D_imp = mean(r / pi(y))` in mixed groups, `2 max c` in
    all-wrong ones. Mixed groups are then z-scored; all-wrong ones are only centred, with `negative_weight` (there
    the least confident answers are *reinforced*: the sum is zero); all-right ones get 0. Source: arXiv 2510.08696.
    """
    c = missing_to_zero(confidences(sequence_log_probabilities, lengths), mask)
    n = jnp.maximum(count(rewards, mask), 1.0)
    right = missing_to_zero(rewards, mask)
    some_right = jnp.any(right > 0, -1, keepdims=True)
    # 1 / pi(y) overflows for long completions: then D_imp is 0 and 2 max(c) decides, as it should.
    inverse = jnp.exp(jnp.where(right > 0, -sequence_log_probabilities, -jnp.inf)).sum(-1, keepdims=True)
    implicit = jnp.where(some_right, n / jnp.where(some_right, inverse, 1.0), 0.0)
    # Where every confidence has underflowed to 0 nothing is left to grade by.
    partition = jnp.maximum(jnp.maximum(implicit, 2.0 * c.max(-1, keepdims=True)), 1e-30)
    modified = missing_to_zero(rewards - (1.0 - rewards) / n * c / (partition - c), mask)
    mixed = some_right & jnp.any(missing_to_zero(1.0 - rewards, mask) > 0, -1, keepdims=True)
    negative = negative_weight * centred(modified, mask)
    return jnp.where(mixed, z_score(modified, mask, ddof, eps), jnp.where(some_right, 0.0, negative))


@advantage(accepts="binary", samples=2)
def c2gspg(
    rewards: Rewards,
    sequence_log_probabilities: Rewards,
    lengths: Rewards,
    mask: Valid = None,
    *,
    eps: float = 1e-6,
) -> Rewards:
    """C2GSPG's advantage, `(r - mean(r)) / (1 - c + eps)`, c the confidence; its loss is `losses.c2gspg`.

    Source: arXiv 2509.23129. Binary rewards only: how others are squashed first is not public.
    """
    return centred(rewards, mask) / (1.0 - confidences(sequence_log_probabilities, lengths) + eps)


@advantage(accepts="binary", samples=2)
def care(
    rewards: Rewards,
    sequence_log_probabilities: Rewards,
    lengths: Rewards,
    mask: Valid = None,
    *,
    negatives: int = 4,
    negative_scale: float = 0.5,
    rescue: float = 0.1,
    eps: float = 1e-6,
) -> Rewards:
    """CARE without hidden states: a z-score within one right anchor and its K hardest failures, 0 for the rest.

    The anchor is the shortest right completion. In an all-wrong group it is the likeliest one, with pseudo rewards
    `+rescue` and `-rescue / K'`, of which the z-score leaves only the sign; `rescue=0` switches that off. With K'
    failures at hand the advantages are `e z` and `-negative_scale |z| e`, `e = sqrt(K / K')`, population deviation.
    All-right groups get 0. Source: arXiv 2512.19554. There the failures are the nearest in hidden-state space and
    spread apart; here, by our choice, the likeliest. Repair rollouts and token weights are left out.
    """
    valid = jnp.ones_like(rewards, bool) if mask is None else mask
    right, wrong = valid & (rewards == 1.0), valid & (rewards == 0.0)
    some_right = right.any(-1, keepdims=True)
    shortest = _first(jnp.where(right, -lengths, -jnp.inf), right)
    likeliest = _first(jnp.where(wrong, sequence_log_probabilities, -jnp.inf), wrong)
    anchor = jnp.where(some_right, shortest, likeliest)
    failures = wrong & ~anchor
    chosen = failures & (_places(jnp.where(failures, sequence_log_probabilities, -jnp.inf)) < negatives)
    number = chosen.sum(-1, keepdims=True).astype(jnp.float32)
    positive = jnp.where(some_right, 1.0, rescue)
    negative = jnp.where(some_right, 0.0, -rescue / jnp.maximum(number, 1.0))
    members = anchor | chosen
    z = z_score(jnp.where(anchor, positive, jnp.where(chosen, negative, 0.0)), members, 0, eps)
    equalized = z * safe_sqrt(negatives / jnp.maximum(number, 1.0))
    result = jnp.where(anchor, equalized, -negative_scale * jnp.abs(equalized))
    return jnp.where(members & (number > 0), result, 0.0)


@advantage(samples=2)
def rank_reward(gradient_norms: Rewards, lengths: Rewards, mask: Valid = None) -> Rewards:
    """VIGOR's reward from given gradient norms: the lower `sqrt(T) |grad mean NLL|` in its group, the higher.

    `gradient_norms[..., G]` are those of the mean negative log-likelihood of each completion, `lengths` its tokens T.
    Ranks are spread over [-1, 1], equal ones share their mean; `group_mean(normalize="std")` of the result is the
    paper's advantage. Needs no verifier. Source: arXiv 2605.09920.
    """
    score = -safe_sqrt(lengths) * gradient_norms
    valid = jnp.ones_like(score, bool) if mask is None else mask
    others = valid[..., None, :]
    lower = (score[..., None, :] < score[..., :, None]) & others
    equal = (score[..., None, :] == score[..., :, None]) & others
    rank = lower.sum(-1) + 0.5 * (equal.sum(-1) - 1)
    return 2.0 * rank / jnp.maximum(count(score, mask) - 1.0, 1.0) - 1.0


def _first(score: Float[Array, "*batch G"], candidates: Bool[Array, "*batch G"]) -> Bool[Array, "*batch G"]:
    """The candidate with the highest score, the first of equals; none where there is no candidate."""
    return (_places(score) == 0) & candidates


def _places(score: Float[Array, "*batch G"]) -> Array:
    """Each sample's place in descending order of score, 0 the highest, the earlier of equals before the later."""
    earlier = jnp.tri(score.shape[-1], k=-1, dtype=bool)
    ahead = (score[..., None, :] > score[..., :, None]) | ((score[..., None, :] == score[..., :, None]) & earlier)
    return ahead.sum(-1)
