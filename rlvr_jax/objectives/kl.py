"""KL(policy || reference), estimated from the tokens that were sampled, or exact over the vocabulary.

With d = log pi - log pi_ref at a sampled token, the estimators of one position are (Schulman 2020, "Approximating KL
divergence"):

| estimator | value | unbiased value | what differentiating the value gives, in expectation on-policy |
|---|---|---|---|
| k1 | d | yes, high variance | 0: no gradient at all |
| k2 | d^2 / 2 | no | the gradient of KL(policy || reference) |
| k3 | exp(-d) - 1 + d | yes, low variance | the gradient of KL(reference || policy) |
| exact | sum over the vocabulary | yes | the gradient of KL(policy || reference) |

So an estimate may not simply be added to a loss. Two uses are right, and each function says which it is: `in_reward`
gives the value alone, to be subtracted from the reward; `in_loss` gives the value of the estimator asked for with the
gradient of KL(policy || reference). `exact` takes logits `[..., T, V]` in the place of log-probabilities. Per position,
given the sampled prefix: what a token does to the KL of later positions reaches the policy through `in_reward` only.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

PerToken = Float[AnyArray, "*batch T"]
PerTokenOrLogits = Float[AnyArray, "..."]
"""`[..., T]`, or logits `[..., T, V]` for `exact`."""
Estimator = Literal["k1", "k2", "k3"]
"""Those that need no more than the sampled tokens."""


def k1(log_probabilities: PerToken, reference_log_probabilities: PerToken) -> PerToken:
    """`d = log pi - log pi_ref`, nats; unbiased, may be negative. Its own gradient is 0 in expectation."""
    return _float32(log_probabilities) - _float32(reference_log_probabilities)


def k2(log_probabilities: PerToken, reference_log_probabilities: PerToken) -> PerToken:
    """`d^2 / 2`; biased value, but on-policy its own gradient is that of KL(policy || reference)."""
    return 0.5 * k1(log_probabilities, reference_log_probabilities) ** 2


def k3(log_probabilities: PerToken, reference_log_probabilities: PerToken) -> PerToken:
    """`exp(-d) - 1 + d`; unbiased, never negative. Its own gradient is that of KL(reference || policy)."""
    d = k1(log_probabilities, reference_log_probabilities)
    # expm1 keeps small differences; beyond 20 nats the value is bounded so that it stays finite.
    return jnp.expm1(jnp.clip(-d, -20.0, 20.0)) + d


def exact(logits: Float[AnyArray, "*batch V"], reference_logits: Float[AnyArray, "*batch V"]) -> Float[Array, "*batch"]:
    """`sum_v pi(v) (log pi(v) - log pi_ref(v))` over the vocabulary, nats; value and gradient are those of the KL.

    Takes logits or log-probabilities; a token of probability 0 adds 0. For V of a language model pass one chunk of
    positions at a time.
    """
    log_p, log_q = (jax.nn.log_softmax(_float32(x), axis=-1) for x in (logits, reference_logits))
    # A token that the policy cannot draw has log-probability -inf: 0 here, where 0 * inf would be NaN.
    possible = log_p > -jnp.inf
    return jnp.sum(jnp.where(possible, jnp.exp(log_p) * jnp.where(possible, log_p - log_q, 0.0), 0.0), -1)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def in_reward(
    estimator: Estimator | Literal["exact"],
    log_probabilities: PerTokenOrLogits,
    reference_log_probabilities: PerTokenOrLogits,
    mask: Bool[AnyArray, "*batch T"],
) -> Float[Array, "*batch"]:
    """The estimator's value summed over each completion, nats: subtract `beta` times it from the reward.

    A constant of the differentiation: the policy feels it through the advantage, which makes it the gradient of the KL
    of whole sequences for unbiased k1 (k3's value is as good, with other noise; `exact` has none, but leaves out what
    the sampled token itself told). Raises UserError for an unknown name.
    """
    value = _named(estimator)(log_probabilities, reference_log_probabilities)
    return jax.lax.stop_gradient(jnp.where(mask, value, 0.0).sum(-1))


def in_loss(
    estimator: Estimator | Literal["exact"],
    log_probabilities: PerTokenOrLogits,
    reference_log_probabilities: PerTokenOrLogits,
    behaviour_log_probabilities: Float[AnyArray, "..."] | None = None,
) -> Float[Array, "..."]:
    """Per token the estimator's value, with the gradient of KL(policy || reference): add `beta` times it to the loss.

    The gradient is `w (log pi - log pi_ref) grad log pi` whichever estimator is shown, where `w = pi / pi_behaviour`
    corrects for tokens that another policy drew (None: on-policy, w = 1). Values: k1 and k3 unbiased for on-policy
    tokens, k2 not. `exact` needs no such correction and has no noise. Raises UserError for an unknown name.
    """
    reference = jax.lax.stop_gradient(_float32(reference_log_probabilities))
    log_probabilities = _float32(log_probabilities)
    value = _named(estimator)(log_probabilities, reference)
    if estimator == "exact":
        return value
    behaviour = log_probabilities if behaviour_log_probabilities is None else _float32(behaviour_log_probabilities)
    change = jnp.clip(log_probabilities - behaviour, -20.0, 20.0)
    gradient = jnp.exp(jax.lax.stop_gradient(change)) * k2(log_probabilities, reference)
    return jax.lax.stop_gradient(value - gradient) + gradient


def _named(estimator: str) -> Callable[[AnyArray, AnyArray], Array]:
    known = ESTIMATORS | {"exact": exact}
    if estimator not in known:
        raise UserError(f"KL estimator is {estimator!r}, accepted are {', '.join(known)}")
    return known[estimator]


def _float32(x: AnyArray) -> Array:
    return jnp.asarray(x, jnp.float32)
