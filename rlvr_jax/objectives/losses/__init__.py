"""Policy losses per token `[..., T]`, and their aggregation to one number.

A loss of 0 is not "nothing learnt": on-policy the value of a group-centred loss is about zero by construction while its
gradient is not. Watch reward and gradient norm, not the loss.
"""

from collections.abc import Callable
from typing import Any, Literal

from rlvr_jax.objectives.losses.aggregation import Aggregation, aggregate, weighted_mean
from rlvr_jax.objectives.losses.off_policy import importance_weights
from rlvr_jax.objectives.losses.sequence_level import c2gspg, gmpo, gspo, gspo_token, hidden_align, real, topr
from rlvr_jax.objectives.losses.surrogate import surrogate
from rlvr_jax.objectives.losses.token_level import cispo, fipo, ppo_clip, reinforce, sapo

Surrogate = Literal[
    "reinforce", "ppo_clip", "gspo", "gspo_token", "cispo", "gmpo", "sapo", "topr", "fipo", "c2gspg", "real"
]
SURROGATES: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (reinforce, ppo_clip, gspo, gspo_token, cispo, gmpo, sapo, topr, fipo, c2gspg, real)
}
"""Surrogate losses by name."""

__all__ = [
    "SURROGATES",
    "Aggregation",
    "Surrogate",
    "aggregate",
    "c2gspg",
    "cispo",
    "fipo",
    "gmpo",
    "gspo",
    "gspo_token",
    "hidden_align",
    "importance_weights",
    "ppo_clip",
    "real",
    "reinforce",
    "sapo",
    "surrogate",
    "topr",
    "weighted_mean",
]
