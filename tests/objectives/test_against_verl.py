"""Our formulas against verl's own functions, called as installed: values, and gradients of the losses.

verl's full requirements hold transformers below the release used here, so verl is not part of the `test` extra and
this file is skipped without it. What `verl.trainer.ppo.core_algos` needs on import is little; beside `.[test]`:

    .venv/bin/pip install 'ray>=2.41' 'tensordict>=0.8,!=0.9.0,<=0.10' omegaconf codetiming
    .venv/bin/pip install --no-deps verl==0.9.1
    .venv/bin/python -m pytest tests/objectives/test_against_verl.py

Not compared, as only one side has them: verl's gae, gdpo, grpo_passk, optimal token baselines, dppo, dro, clip_cov
and kl_cov.
"""

import warnings

import jax
import numpy as np
import pytest
import torch

import rlvr_jax as rj
from rlvr_jax.errors import UserError

with warnings.catch_warnings():
    # Deprecations of verl and of what it imports are not ours to fix.
    warnings.simplefilter("ignore")
    core = pytest.importorskip(
        "verl.trainer.ppo.core_algos", reason="verl is not installed: the head of this file says how"
    )
    from verl.trainer.config import AlgoConfig
    from verl.workers.config import ActorConfig

PROMPTS, GROUP, LENGTH = 6, 4, 7
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _rewards(kind: str) -> np.ndarray:
    """Rewards [P, G]; the first two groups are uniform, all wrong and all right."""
    generator = np.random.default_rng(0)
    if kind == "binary":
        rewards = generator.integers(0, 2, (PROMPTS, GROUP))
    else:
        rewards = generator.normal(0.5, 1.0, (PROMPTS, GROUP))
    rewards[0], rewards[1] = 0, 1
    return rewards.astype(np.float32)


def _lengths() -> np.ndarray:
    """Completion lengths [P, G], from one token to the full width."""
    lengths = np.random.default_rng(1).integers(1, LENGTH + 1, (PROMPTS, GROUP))
    lengths[0, 0], lengths[2, 0] = 1, LENGTH
    return lengths


def _mask(lengths: np.ndarray) -> np.ndarray:
    """Token mask [P * G, T]."""
    return np.arange(LENGTH) < lengths.reshape(-1, 1)


def _greedy(prompts: int) -> np.ndarray:
    """A reward of the greedy completion for every prompt."""
    return (np.arange(prompts) % 2).astype(np.float32)


def _verl_advantages(name: str, rewards: np.ndarray, lengths: np.ndarray, **settings) -> np.ndarray:
    """verl's advantages [P * G, T]; as in its trainer, the reward sits on the last token of the completion.

    Rows go in shuffled: verl finds groups by their index, not by their place.
    """
    mask = _mask(lengths)
    token_level = np.where(np.arange(LENGTH) == lengths.reshape(-1, 1) - 1, rewards.reshape(-1, 1), 0)
    order = np.random.default_rng(2).permutation(rewards.size)
    prompt = np.repeat(np.arange(len(rewards)), rewards.shape[1])[order]
    if name == "remax":
        settings["reward_baselines"] = torch.tensor(_greedy(len(rewards))[prompt])
    advantages, _ = core.get_adv_estimator_fn(name)(
        token_level_rewards=torch.tensor(token_level[order], dtype=torch.float32),
        response_mask=torch.tensor(mask[order], dtype=torch.float32),
        config=AlgoConfig(),
        **({} if name in ("reinforce_plus_plus", "remax") else {"index": prompt}),
        **settings,
    )
    return advantages.numpy()[np.argsort(order)]


@pytest.mark.parametrize("kind", ["binary", "real"])
@pytest.mark.parametrize(
    ("name", "settings", "ours"),
    [
        ("grpo", {}, lambda r, n: rj.advantages.group_mean(r, normalize="std", ddof=1, eps=1e-6)),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, lambda r, n: rj.advantages.group_mean(r)),
        ("grpo_vectorized", {}, lambda r, n: rj.advantages.group_mean(r, normalize="std", ddof=1, eps=1e-6)),
        ("rloo", {}, lambda r, n: rj.advantages.leave_one_out(r)),
        ("rloo_vectorized", {}, lambda r, n: rj.advantages.leave_one_out(r)),
        ("opo", {}, lambda r, n: rj.advantages.opo(r, n)),
        ("reinforce_plus_plus", {}, lambda r, n: rj.advantages.reinforce_plus_plus(r, lengths=n)),
        ("reinforce_plus_plus_baseline", {}, lambda r, n: rj.advantages.reinforce_plus_plus_baseline(r, lengths=n)),
        ("remax", {}, lambda r, n: rj.advantages.remax(r, _greedy(len(r)))),
        # verl counts samples whose reward is not zero, the paper those of groups that are not uniform.
        ("gpg", {}, lambda r, n: rj.advantages.gpg(r, correct_by="non_zero")),
    ],
)
def test_advantages(kind, name, settings, ours):
    rewards, lengths = _rewards(kind), _lengths()
    theirs = _verl_advantages(name, rewards, lengths, **settings)
    advantages = np.asarray(ours(rewards, lengths)).reshape(-1, 1) * _mask(lengths)
    np.testing.assert_allclose(advantages, theirs, **CLOSE)


@pytest.mark.parametrize(
    ("name", "of_one"), [("grpo", 1.0), ("rloo", 1.0), ("opo", 1.0), ("gpg", 1.0), ("rloo_vectorized", 0.0)]
)
def test_a_group_of_one_is_where_verl_disagrees_with_itself(name, of_one):
    """There a comparison has no meaning: verl gives the raw reward or 0, depending on the function; we refuse."""
    rewards, lengths = np.ones((3, 1), np.float32), np.full((3, 1), LENGTH)
    np.testing.assert_allclose(_verl_advantages(name, rewards, lengths), of_one, rtol=1e-5)
    ours = {
        "grpo": lambda: rj.advantages.group_mean(rewards, normalize="std"),
        "opo": lambda: rj.advantages.opo(rewards, lengths),
        "gpg": lambda: rj.advantages.gpg(rewards),
    }
    with pytest.raises(UserError, match="is 1, accepted is 2 or more"):
        ours.get(name, lambda: rj.advantages.leave_one_out(rewards))()


def test_gpg_of_the_paper_differs_from_verl_by_the_count_alone():
    rewards = _rewards("binary")
    informative = np.ptp(rewards, -1) > 0
    paper = np.asarray(rj.advantages.gpg(rewards)) * informative.sum() * GROUP
    theirs = _verl_advantages("gpg", rewards, np.full(rewards.shape, LENGTH))[:, 0] * np.count_nonzero(rewards)
    assert informative.sum() * GROUP != np.count_nonzero(rewards)
    np.testing.assert_allclose(paper.reshape(-1), theirs, rtol=1e-5)


AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant_length",
}


def _values() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(PROMPTS * GROUP, LENGTH)).astype(np.float32)


def _compare(ours, theirs, log_probabilities: np.ndarray) -> None:
    """Value and gradient with respect to the log-probabilities of a scalar loss on either side."""
    value, gradient = jax.value_and_grad(ours)(log_probabilities)
    variable = torch.tensor(log_probabilities, requires_grad=True)
    loss = theirs(variable)
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), **CLOSE)
    np.testing.assert_allclose(gradient, variable.grad.numpy(), **CLOSE)
    assert np.any(np.asarray(gradient) != 0)


@pytest.mark.parametrize(("mode", "how"), AGGREGATIONS.items())
def test_aggregation(mode, how):
    mask = _mask(_lengths())
    _compare(
        lambda x: rj.losses.weighted_mean(*rj.losses.aggregate(x, mask, how)),
        lambda x: core.agg_loss(x, torch.tensor(mask, dtype=torch.float32), mode),
        _values(),
    )


def test_aggregation_by_token_sum_and_by_a_given_length():
    mask = _mask(_lengths())
    torch_mask = torch.tensor(mask, dtype=torch.float32)
    _compare(
        lambda x: rj.losses.aggregate(x, mask, "token_mean")[0],
        lambda x: core.agg_loss(x, torch_mask, "token-sum"),
        _values(),
    )
    _compare(
        lambda x: rj.losses.weighted_mean(*rj.losses.aggregate(x, mask, "constant_length", length=50)),
        lambda x: core.agg_loss(x, torch_mask, "seq-mean-token-sum-norm", loss_scale_factor=50),
        _values(),
    )


@pytest.mark.parametrize(("mode", "how"), list(AGGREGATIONS.items())[1:])
def test_fully_masked_sequences_keep_their_place_as_in_verl_with_a_global_batch_size(mode, how):
    """Without `global_batch_size` verl leaves them out of its denominator, so that its loss depends on them."""
    mask = _mask(_lengths()) & (np.arange(PROMPTS * GROUP) % 5 > 0)[:, None]
    torch_mask = torch.tensor(mask, dtype=torch.float32)
    _compare(
        lambda x: rj.losses.weighted_mean(*rj.losses.aggregate(x, mask, how)),
        lambda x: core.agg_loss(x, torch_mask, mode, global_batch_size=len(mask)),
        _values(),
    )
    kept = mask.any(-1).mean()
    loss = core.agg_loss(torch.tensor(_values()), torch_mask, mode).item()
    np.testing.assert_allclose(
        rj.losses.weighted_mean(*rj.losses.aggregate(_values(), mask, how)), loss * kept, **CLOSE
    )


def _policy(spread: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the policy and of the one that sampled; ratios reach both sides of any clipping."""
    generator = np.random.default_rng(4)
    behaviour = -generator.exponential(1.0, (PROMPTS * GROUP, LENGTH))
    new = np.minimum(behaviour + generator.normal(0, spread, behaviour.shape), -1e-3)
    return new.astype(np.float32), behaviour.astype(np.float32)


def _sequence_advantages() -> np.ndarray:
    """One advantage for all tokens of a sequence; the first two groups have none."""
    advantages = rj.advantages.group_mean(_rewards("real"), normalize="std")
    return np.repeat(np.asarray(advantages).reshape(-1, 1), LENGTH, -1)


def _token_advantages() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(PROMPTS * GROUP, LENGTH)).astype(np.float32)


def _compare_policy_loss(name: str, mode: str, config: dict, ours, advantages: np.ndarray, spread: float = 0.8) -> None:
    """`ours` is a loss per token, (log_probabilities, behaviour, advantages, mask), to be aggregated as `mode` says."""
    mask = _mask(_lengths())
    new, behaviour = _policy(spread)
    settings = ActorConfig(strategy="fsdp", rollout_n=GROUP, ppo_micro_batch_size_per_gpu=1, **config)
    function = core.compute_policy_loss_reinforce if name == "reinforce" else core.get_policy_loss_fn(name)

    def total(log_probabilities):
        per_token = ours(log_probabilities, behaviour, advantages, mask)
        return rj.losses.weighted_mean(*rj.losses.aggregate(per_token, mask, AGGREGATIONS[mode]))

    def theirs(log_probabilities):
        arguments = (torch.tensor(x) for x in (advantages, mask.astype(np.float32)))
        return function(torch.tensor(behaviour), log_probabilities, *arguments, loss_agg_mode=mode, config=settings)[0]

    _compare(total, theirs, new)


CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize(
    ("name", "config", "ours"),
    [
        ("reinforce", {}, rj.losses.reinforce),
        ("gpg", {}, rj.losses.reinforce),
        (
            "vanilla",
            {**CLIP, "clip_ratio_c": 3.0},
            lambda *a: rj.losses.ppo_clip(*a, clip_low=0.2, clip_high=0.28, dual_clip=3.0),
        ),
        # verl's lower bound cannot be switched off, only put out of reach.
        (
            "vanilla",
            {**CLIP, "clip_ratio_c": 1e6},
            lambda *a: rj.losses.ppo_clip(*a, clip_low=0.2, clip_high=0.28),
        ),
        # verl bounds the weight to [1 - low, 1 + high]; ours takes the bounds themselves.
        ("cispo", CLIP, lambda *a: rj.losses.cispo(*a, cap=1.28, floor=0.8)),
        ("gspo", CLIP, lambda *a: rj.losses.gspo_token(*a, clip_low=0.2, clip_high=0.28)),
    ],
    ids=["reinforce", "gpg", "vanilla_dual_clip", "vanilla", "cispo", "gspo_token"],
)
def test_losses_with_an_advantage_per_token(name, config, ours, mode):
    _compare_policy_loss(name, mode, config, ours, _token_advantages())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("vanilla", lambda *a: rj.losses.ppo_clip(*a, clip_low=0.2, clip_high=0.28, dual_clip=3.0)),
        ("cispo", lambda *a: rj.losses.cispo(*a, cap=1.28, floor=0.8)),
        ("sapo", rj.losses.sapo),
    ],
)
def test_ratios_of_policies_that_have_nothing_in_common(name, ours):
    """Log-ratios beyond +-20, where both sides stop the ratio so that it stays finite."""
    new, behaviour = _policy(spread=30.0)
    assert np.ptp(new - behaviour) > 40
    _compare_policy_loss(name, "seq-mean-token-mean", CLIP, ours, _token_advantages(), spread=30.0)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean"])
@pytest.mark.parametrize(("low", "high", "spread"), [(0.2, 0.28, 0.8), (3e-4, 4e-4, 1e-3)])
def test_gspo(low, high, spread, mode):
    """verl writes GSPO in its token form, which equals the sequence form where a sequence has one advantage.

    It stops log-ratios at 10 there, we at 20 as elsewhere: not reached here.
    """
    _compare_policy_loss(
        "gspo",
        mode,
        {"clip_ratio_low": low, "clip_ratio_high": high},
        lambda *a: rj.losses.gspo(*a, clip_low=low, clip_high=high),
        _sequence_advantages(),
        spread,
    )


def test_gmpo():
    """Its bounds are of the log-ratio. verl takes the mean over sequences whatever the mode."""
    _compare_policy_loss(
        "geo_mean",
        "seq-mean-token-mean",
        {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
        lambda *a: rj.losses.gmpo(*a, clip_low=0.4, clip_high=0.4),
        _sequence_advantages(),
    )


def test_sapo():
    """verl takes the mean over sequences whatever the mode."""
    _compare_policy_loss(
        "sapo",
        "seq-mean-token-mean",
        {"tau_pos": 1.0, "tau_neg": 1.05},
        lambda *a: rj.losses.sapo(*a, tau_positive=1.0, tau_negative=1.05),
        _token_advantages(),
    )


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl(name):
    """The estimator itself, and the form for a loss, whose gradient is k2's: a "+" after the name in verl."""
    new, reference = _policy()
    np.testing.assert_allclose(
        getattr(rj.kl, name)(new, reference), core.kl_penalty(torch.tensor(new), torch.tensor(reference), name), **CLOSE
    )
    weights = _values()
    # On-policy: our weight pi / pi_behaviour, which verl does not have, is then one.
    _compare(
        lambda x: (rj.kl.in_loss(name, x, reference, new) * weights).sum(),
        lambda x: (core.kl_penalty(x, torch.tensor(reference), name + "+") * torch.tensor(weights)).sum(),
        new,
    )
