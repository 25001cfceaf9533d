"""What happens to rewards and samples around an advantage: length shaping and the samples left out of the loss."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray


@dataclasses.dataclass(frozen=True)
class Overlong:
    """DAPO's soft punishment of long completions, added to the reward (arXiv 2503.14476, eq. 13).

    0 up to `longest - cache` tokens, falling linearly to -1 at `longest`, -1 beyond. Raises UserError unless
    0 < cache <= longest.
    """

    longest: int = 20480
    cache: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.cache <= self.longest:
            raise UserError(f"overlong cache is {self.cache}, accepted is a number from 1 to longest = {self.longest}")

    def penalty(self, lengths: Num[AnyArray, "*batch G"]) -> Float[Array, "*batch G"]:
        """Of completions of these lengths in tokens, in [-1, 0]."""
        into_cache = jnp.asarray(lengths, jnp.float32) - (self.longest - self.cache)
        return -jnp.clip(into_cache / self.cache, 0.0, 1.0)


def informative(
    rewards: Num[AnyArray, "*batch G"], mask: Bool[AnyArray, "*batch G"] | None = None
) -> Bool[Array, "*batch"]:
    """Groups whose valid rewards are not all equal: those that DAPO's dynamic sampling keeps."""
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones_like(rewards, bool) if mask is None else jnp.asarray(mask, bool)
    return jnp.max(jnp.where(valid, rewards, -jnp.inf), -1) > jnp.min(jnp.where(valid, rewards, jnp.inf), -1)
