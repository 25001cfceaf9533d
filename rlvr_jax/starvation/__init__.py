"""The science of silent groups: how many there are, why, what an advantage does with them, and honest intervals."""

from rlvr_jax.starvation.beta_binomial import BetaBinomial, fit_beta_binomial
from rlvr_jax.starvation.degeneracy import (
    Degeneracy,
    bernoulli_prediction,
    degeneracy,
    filtering_cost,
    zero_advantage_share,
)
from rlvr_jax.starvation.exact_update import (
    GradientMoments,
    UpdateSplit,
    expected_update,
    gradient_moments,
    signal_to_noise,
)
from rlvr_jax.starvation.heterogeneity import JensenGap, beta_binomial_degeneracy, degeneracy_at, jensen_gap
from rlvr_jax.starvation.intervals import (
    Interval,
    bootstrap_interval,
    mean_interval,
    share_interval,
    wilson_interval,
)
from rlvr_jax.starvation.reward_log import RewardLog, read_reward_log
from rlvr_jax.starvation.search import SearchCompression, maj_at_k, pass_at_k, search_compression
from rlvr_jax.starvation.significance import (
    PairedBootstrap,
    PermutationTest,
    WelchTest,
    paired_bootstrap,
    permutation_test,
    welch_t_test,
)

__all__ = [
    "BetaBinomial",
    "Degeneracy",
    "GradientMoments",
    "Interval",
    "JensenGap",
    "PairedBootstrap",
    "PermutationTest",
    "RewardLog",
    "SearchCompression",
    "UpdateSplit",
    "WelchTest",
    "bernoulli_prediction",
    "beta_binomial_degeneracy",
    "bootstrap_interval",
    "degeneracy",
    "degeneracy_at",
    "expected_update",
    "filtering_cost",
    "fit_beta_binomial",
    "gradient_moments",
    "jensen_gap",
    "maj_at_k",
    "mean_interval",
    "paired_bootstrap",
    "pass_at_k",
    "permutation_test",
    "read_reward_log",
    "search_compression",
    "share_interval",
    "signal_to_noise",
    "welch_t_test",
    "wilson_interval",
    "zero_advantage_share",
]
