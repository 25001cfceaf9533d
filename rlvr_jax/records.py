"""The records that travel the road, and how a record becomes a pytree.

P prompts, G samples of each (a group), Tp tokens of a prompt, T tokens of a completion: the same letters everywhere.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

AnyArray = jax.Array | np.ndarray
Record = TypeVar("Record")


@dataclass_transform(frozen_default=True)
def record(cls: type[Record]) -> type[Record]:
    """A frozen dataclass registered as a pytree.

    Unlike `jax.tree_util.register_dataclass`, rebuilding one from leaves does not run the constructor, so a
    record of shardings or shapes is allowed while a record of wrongly shaped arrays is caught by type checks.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(cls))
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in names)

    def flatten_with_keys(value: Any) -> tuple:
        return tuple((key, getattr(value, name)) for key, name in zip(keys, names, strict=True)), None

    def flatten(value: Any) -> tuple:
        return tuple(getattr(value, name) for name in names), None

    def unflatten(_: None, leaves: Any) -> Any:
        value = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


@record
class Prompts:
    """What is asked, without the prefix that all prompts of a task share."""

    tokens: Int[AnyArray, "P Tp"]
    mask: Bool[AnyArray, "P Tp"]
    """True on real tokens; pads (False) may stand on either side and are never attended."""
    ids: UInt32[AnyArray, " P"]
    """Names a prompt within its stream; the sampling noise is addressed by it."""


@record
class Rollouts:
    """G sampled completions of each prompt."""

    tokens: Int[AnyArray, "P G T"]
    mask: Bool[AnyArray, "P G T"]
    """True on every token the policy chose, the one it stopped at included."""
    log_probabilities: Float[AnyArray, "P G T"]
    """Nats, of each token under the distribution it was drawn from, after temperature and truncation (at temperature 0:
    the untempered policy), 0 on pads. This is what a trainer at the same temperature compares with."""
    policy_log_probabilities: Float[AnyArray, "P G T"]
    """Nats, of each token under the policy itself: temperature 1, nothing truncated; 0 on pads."""
    entropies: Float[AnyArray, "P G T"]
    """Nats, of the distribution drawn from, 0 on pads."""
    truncated: Bool[AnyArray, "P G"]
    """True where the length limit ended the completion, not a stop token or a stop string."""


@record
class Batch:
    """All that one policy update sees."""

    prompts: Prompts
    rollouts: Rollouts
    rewards: Float[AnyArray, "P G"]
    advantages: Float[AnyArray, "P G T"]
    loss_mask: Bool[AnyArray, "P G T"]
    """True on the tokens that take part in the loss: those of `rollouts.mask` that the objective keeps."""
    old_log_probabilities: Float[AnyArray, "P G T"] | None = None
    """The trainer's own before its first of several updates on this batch, for a loss with `importance_cap`; None:
    this update is the first."""
