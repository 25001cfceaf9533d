"""How sampling may be less exact than the policy that is trained, for speed and memory on accelerators."""

import dataclasses
from typing import Literal

from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Precision:
    """The sampler's own precision; by default the model's. Importance weights correct an update for the difference."""

    dtype: Literal["float32", "bfloat16"] | None = None
    """Of activations, matrix products, keys and values; default: the model's compute type."""
    int8_weights: bool = False
    """Decode with attention and MLP weights of 8 bits, a scale for each output; prompts are run with the model's own,
    and so are Gated DeltaNet's weights, embedding and head."""
    int8_cache: bool = False
    """Keep the completions' keys and values in 8 bits, a scale for each token and head. The state of Gated DeltaNet
    layers stays float32: it does not grow, and an error in it would."""

    def __post_init__(self) -> None:
        if self.dtype not in (None, "float32", "bfloat16"):
            raise UserError(f"dtype of rollouts is {self.dtype!r}, accepted are None, 'float32', 'bfloat16'")

    @property
    def exact(self) -> bool:
        """Whether it is that of the model."""
        return self == Precision()
