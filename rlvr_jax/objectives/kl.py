"""The KL penalty that keeps the policy near a reference."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from rlvr_jax.records import AnyArray

PerToken = Float[AnyArray, "*batch T"]


def kl_in_loss(
    log_probabilities: PerToken, reference_log_probabilities: PerToken, behaviour_log_probabilities: PerToken
) -> PerToken:
    """Per-token estimate of KL(policy || reference) for use in a loss: the value of k3, the gradient of the true KL.

    With d = log pi_ref - log pi, k3 = exp(d) - d - 1 is the low-variance unbiased value (Schulman 2020,
    "Approximating KL divergence"), but differentiating it does not give the gradient of the KL: that of
    k2 = d^2 / 2 does, in expectation over tokens of the policy. So the value is k3 and the gradient is
    `w * (log pi - log pi_ref) * grad log pi`, where w = pi / pi_behaviour corrects tokens that another policy
    drew (1 when on-policy). As everywhere in the field the expectation is per position, given the
    prefix that was sampled: the effect of a token on the KL of later positions is left out.
    """
    difference = jax.lax.stop_gradient(reference_log_probabilities) - log_probabilities
    value = jnp.expm1(difference) - difference
    ratio = jnp.exp(jax.lax.stop_gradient(log_probabilities - behaviour_log_probabilities))
    gradient = ratio * 0.5 * difference**2
    return jax.lax.stop_gradient(value - gradient) + gradient
