"""An objective as data: which advantage, which surrogate, which aggregation, how much KL.

To add one, write an advantage function in `advantages.py` and give it a line in `OBJECTIVES`.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.errors import UserError
from rlvr_jax.objectives import advantages
from rlvr_jax.objectives.kl import kl_in_loss
from rlvr_jax.objectives.losses import Aggregation, aggregate, policy_gradient, ppo_clip
from rlvr_jax.records import AnyArray

PerToken = Float[AnyArray, "*batch T"]


@dataclasses.dataclass(frozen=True)
class Loss:
    """How advantages become a loss: surrogate, its clipping, aggregation and KL coefficient."""

    surrogate: Literal["policy_gradient", "ppo_clip"] = "policy_gradient"
    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: Aggregation = "sequence_mean"
    kl_coefficient: float = 0.0

    def __call__(
        self,
        log_probabilities: PerToken,
        behaviour_log_probabilities: PerToken,
        advantages: PerToken,
        mask: Bool[AnyArray, "*batch T"],
        reference_log_probabilities: PerToken | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """(sum, weight) of the loss over a batch of completions; see `aggregate`.

        `behaviour_log_probabilities` are those of the policy that sampled; the reference is needed when
        `kl_coefficient` is not 0.
        """
        if self.surrogate == "policy_gradient":
            per_token = policy_gradient(log_probabilities, behaviour_log_probabilities, advantages)
        else:
            per_token = ppo_clip(
                log_probabilities,
                behaviour_log_probabilities,
                advantages,
                clip_low=self.clip_low,
                clip_high=self.clip_high,
            )
        if self.kl_coefficient:
            if reference_log_probabilities is None:
                raise UserError(f"kl_coefficient is {self.kl_coefficient}: reference_log_probabilities must be given")
            kl = kl_in_loss(log_probabilities, reference_log_probabilities, behaviour_log_probabilities)
            per_token = per_token + self.kl_coefficient * kl
        return aggregate(per_token, mask, self.aggregation)


@dataclasses.dataclass(frozen=True)
class Objective:
    """An advantage (rewards `[P, G]` to advantages `[P, G]`) and the loss that uses it."""

    advantage: Callable[[Array], Array]
    loss: Loss = Loss()

    def check(self, samples_per_prompt: int) -> None:
        """Raises UserError when the advantage cannot work with groups of this size."""
        jax.eval_shape(self.advantage, jax.ShapeDtypeStruct((1, samples_per_prompt), jnp.float32))


OBJECTIVES: dict[str, Objective] = {
    "sign": Objective(advantages.sign),
    "half_reference": Objective(advantages.half_reference),
    "group_mean": Objective(advantages.group_mean),
    "group_mean_std": Objective(advantages.group_mean_std),
}


def named_objective(name: str, loss: Loss | None = None) -> Objective:
    """The objective of this name, with `loss` in place of its own where given. Raises UserError for an unknown name."""
    if name not in OBJECTIVES:
        raise UserError(f"objective is {name!r}, accepted are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name] if loss is None else dataclasses.replace(OBJECTIVES[name], loss=loss)
