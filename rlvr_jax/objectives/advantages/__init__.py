"""Advantages: rewards `[..., G]` of a group of G samples of one prompt to advantages `[..., G]`, one function each.

All of them are pure, take lists, NumPy or JAX arrays of any leading batch shape, compute in float32, and are safe
under jit, vmap, grad and shard_map. `mask[..., G]`, where given, is False on samples without a reward: they enter no
statistic and their advantage is 0. What else can go wrong has one answer each:

* G = 1 under a method that compares samples: UserError. A group that `mask` leaves with one sample: 0.
* A uniform group: exactly 0 under every centred method, see `experiments.objectives` for the others.
* A reward that is not finite (or not 0 or 1 where only those have a meaning): UserError; inside jit an error under
  `checkify.checkify(..., errors=checkify.user_checks)`, else a non-finite one makes every advantage it touches 0.
* Nothing valid at all: 0 everywhere.
"""

from rlvr_jax.objectives.advantages.batch_relative import (
    batch_normalized,
    bnpo,
    gpg,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
)
from rlvr_jax.objectives.advantages.best_of_k import pass_at_k, pkpo
from rlvr_jax.objectives.advantages.confidence import c2gspg, care, confidences, lens, rank_reward
from rlvr_jax.objectives.advantages.fixed_reference import (
    negative_only,
    positive_only,
    reinforce,
    remax,
    sign,
    tasa,
    weighted_reinforce,
)
from rlvr_jax.objectives.advantages.group_relative import (
    focal,
    group_mean,
    leave_one_out,
    mapo,
    max_rl,
    ngrpo,
    opmd,
    opo,
    pooled,
    rare_event,
    virtual_rewards,
)
from rlvr_jax.objectives.advantages.groups import advantage
from rlvr_jax.objectives.advantages.token_level import future_kl, step_scores, turn_gain, zero_variance_entropy
from rlvr_jax.objectives.advantages.tracked import (
    BetaTracker,
    HistoryState,
    ShrinkageState,
    history_weighted,
    shrinkage,
    single_stream,
    start_beta_tracker,
    start_history,
    start_shrinkage,
)

__all__ = [
    "BetaTracker",
    "HistoryState",
    "ShrinkageState",
    "advantage",
    "batch_normalized",
    "bnpo",
    "c2gspg",
    "care",
    "confidences",
    "focal",
    "future_kl",
    "gpg",
    "group_mean",
    "history_weighted",
    "leave_one_out",
    "lens",
    "mapo",
    "max_rl",
    "negative_only",
    "ngrpo",
    "opmd",
    "opo",
    "pass_at_k",
    "pkpo",
    "pooled",
    "positive_only",
    "rank_reward",
    "rare_event",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "shrinkage",
    "sign",
    "single_stream",
    "start_beta_tracker",
    "start_history",
    "start_shrinkage",
    "step_scores",
    "tasa",
    "turn_gain",
    "virtual_rewards",
    "weighted_reinforce",
    "zero_variance_entropy",
]
