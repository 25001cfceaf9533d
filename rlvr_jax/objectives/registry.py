"""The named objectives. To add one: an advantage function (or a surrogate) and a line here.

`sign`, `half_reference`, `group_mean` and `group_mean_std` share one loss, so that they differ in the advantage alone.
The others carry the surrogate, clipping and aggregation of their papers. No preset has a KL; give one with
`dataclasses.replace(objective.loss, kl=KL(0.04))` or `--kl-coefficient`. Where a paper's settings are not public there
is no preset: `advantages.virtual_rewards` (AVSPO), `history_weighted` (HA-DW), `losses.hidden_align`; nor for
`advantages.pooled` (TA-GRPO), whose batches hold rewritten questions.
"""

from rlvr_jax.errors import UserError
from rlvr_jax.objectives import advantages, losses
from rlvr_jax.objectives.objective import Loss, Objective, using

_Z = using(advantages.group_mean, normalize="std")
_TOKENS = "token_mean"
_CLIP = Loss(losses.ppo_clip)
_CLIP_TOKENS = Loss(losses.ppo_clip, _TOKENS)
_TOKEN_GRADIENT = Loss(losses.reinforce, _TOKENS)
_CLIP_HIGHER = using(losses.ppo_clip, clip_low=0.2, clip_high=0.28)

OBJECTIVES: dict[str, Objective] = {
    # The paper's, and its controls.
    "sign": Objective(advantages.sign, formula="2r - 1", source="2605.07689"),
    "half_reference": Objective(using(advantages.reinforce, baseline=0.5), formula="r - 1/2", source="Williams 1992"),
    "group_mean": Objective(advantages.group_mean, formula="r - mean", source="2503.20783"),
    "group_mean_std": Objective(_Z, formula="z = (r - mean) / std", source="2605.07689, 2402.03300"),
    "reinforce": Objective(advantages.reinforce, formula="r", source="Williams 1992"),
    "tasa": Objective(advantages.tasa, formula="1 / n_right, -1 / n_wrong", source="2605.07689, precursor"),
    # Fixed reference.
    "psr": Objective(advantages.positive_only, _CLIP, formula="1, 0", source="2506.01347"),
    "nsr": Objective(advantages.negative_only, _CLIP, formula="0, -1", source="2506.01347"),
    "w_reinforce": Objective(advantages.weighted_reinforce, _CLIP, formula="0.1, -1", source="2506.01347"),
    "topr": Objective(advantages.sign, Loss(losses.topr), formula="2r - 1; min(w, 1) if wrong", source="2503.14286"),
    "remax": Objective(advantages.remax, Loss(losses.reinforce), formula="r - r(greedy)", source="2310.10505"),
    # Group-relative.
    "rloo": Objective(
        advantages.leave_one_out,
        Loss(losses.reinforce, "sequence_sum"),
        formula="r - mean of others",
        source="2402.14740",
    ),
    "grpo": Objective(_Z, _CLIP, formula="z; clip", source="2402.03300"),
    "drgrpo": Objective(
        advantages.group_mean, Loss(losses.ppo_clip, "constant_length"), formula="r - mean; sum/L", source="2503.20783"
    ),
    "dapo": Objective(
        _Z, Loss(_CLIP_HIGHER, _TOKENS), drop_uniform=True, formula="z; clip .2/.28; mixed groups", source="2503.14476"
    ),
    "gspo": Objective(_Z, Loss(losses.gspo), formula="z; clip of sequence ratio", source="2507.18071"),
    "cispo": Objective(_Z, Loss(losses.cispo, _TOKENS), formula="z; sg(min(w, 5)) log pi", source="2506.13585"),
    "gmpo": Objective(_Z, Loss(losses.gmpo), formula="z; geometric mean ratio", source="2507.20673"),
    "sapo": Objective(_Z, Loss(losses.sapo), formula="z; soft gate of w", source="2511.20347"),
    "fipo": Objective(_Z, Loss(losses.fipo, _TOKENS), formula="z clip(exp(future KL), 1, 1.2)", source="2603.19835"),
    "opo": Objective(advantages.opo, _TOKEN_GRADIENT, formula="r - sum(|y| r) / sum|y|", source="2505.23585"),
    "opmd": Objective(advantages.opmd, _TOKEN_GRADIENT, formula="r - mean", source="2501.12599"),
    "asymre": Objective(
        using(advantages.opmd, baseline_shift=-0.1), _TOKEN_GRADIENT, formula="r - mean + 0.1", source="Trinity-RFT"
    ),
    "max_rl": Objective(advantages.max_rl, formula="(r - mean) / mean", source="tajwarfahim/maxrl"),
    "mapo": Objective(advantages.mapo, _CLIP, formula="w z + (1 - w)(r - mean) / mean", source="2509.18849"),
    "f_grpo": Objective(advantages.focal, _CLIP, formula="(1 - p)^0.5 z", source="2602.06717"),
    "ngrpo": Objective(
        advantages.ngrpo,
        Loss(using(losses.ppo_clip, clip_low=0.16, clip_high=0.24)),
        formula="z against group + {1}",
        source="2509.18851",
    ),
    "real": Objective(advantages.sign, Loss(losses.real), formula="log(1 + sum exp(-+s / tau))", source="2602.05630"),
    # Batch-relative.
    "lite_ppo": Objective(
        advantages.batch_normalized, _CLIP_TOKENS, formula="(r - mean) / std of batch", source="2508.08221"
    ),
    "reinforce_plus_plus": Objective(
        advantages.reinforce_plus_plus, _CLIP_TOKENS, formula="(r - m) / s, of batch", source="2501.03262"
    ),
    "reinforce_plus_plus_baseline": Objective(
        advantages.reinforce_plus_plus_baseline, _CLIP_TOKENS, formula="whitened(r - mean)", source="2501.03262"
    ),
    "gpg": Objective(advantages.gpg, _TOKEN_GRADIENT, formula="B / B_mixed (r - mean)", source="2504.02546"),
    "bnpo": Objective(advantages.bnpo, _CLIP, formula="(r - p) / Beta(p; a, b)", source="2506.02864"),
    # Best of k.
    "pass_at_k": Objective(
        using(advantages.pass_at_k, k=2), _CLIP, formula="mean z of 2-subsets", source="2508.10751"
    ),
    "pkpo": Objective(using(advantages.pkpo, k=2), formula="what r adds to the best of 2", source="2505.15201"),
    # Confidence of the sampling policy.
    "lens": Objective(advantages.lens, _CLIP, formula="z of r - (1 - r) c / G (D - c)", source="2510.08696"),
    "c2gspg": Objective(
        advantages.c2gspg, Loss(losses.c2gspg), formula="(r - mean) / (1 - c); BCE(c, r)", source="2509.23129"
    ),
    "care": Objective(advantages.care, _CLIP, formula="z of anchor and 4 failures", source="2512.19554, our text form"),
    # With memory.
    "spo": Objective(
        advantages.single_stream, _CLIP, formula="whitened(r - tracked p)", source="2509.13232"
    ),
    "ebpo": Objective(
        advantages.shrinkage,
        _CLIP,
        start=advantages.start_shrinkage,
        formula="whitened(r - shrunk mean)",
        source="2602.05165",
    ),
    # Token level.
    "rl_zvp": Objective(
        advantages.zero_variance_entropy, _CLIP, formula="z; uniform: +-0.1 by entropy", source="2509.21880"
    ),
}  # fmt: skip


def named_objective(name: str) -> Objective:
    """The objective of this name. Raises UserError, listing the known ones, for another."""
    if name not in OBJECTIVES:
        raise UserError(f"objective is {name!r}, accepted are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
