"""Our formulas against TRL's own trainers, called as installed: values, and gradients of the losses.

TRL computes advantages and losses inside methods of its trainers. They are called here on a stand-in that has the
trainer's settings, with generation, grading and the model's forward pass replaced by given numbers; what lies between
is TRL's. Skipped where TRL is not installed: `.venv/bin/pip install trl==1.16.0` beside `.[test]`.

Not compared, as only one side has them: TRL's vespo, its off-policy and entropy masks, several reward functions at
once, RLOO's normalisation after the leave-one-out baseline.
"""

import collections
import types
import warnings

import jax
import numpy as np
import pytest
import torch

import rlvr_jax as rj
from rlvr_jax.errors import UserError

with warnings.catch_warnings():
    # Deprecations of TRL and of what it imports are not ours to fix.
    warnings.simplefilter("ignore")
    pytest.importorskip("trl", reason="TRL is not installed: the head of this file says how")
    from trl import GRPOTrainer, RLOOTrainer

PROMPTS, GROUP, LENGTH = 6, 4, 7
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
_LOGS = ("prompt", "completion", "rewards", "advantages", "extra")


def _rewards(kind: str) -> np.ndarray:
    """Rewards [P, G]; the first two groups are uniform, all wrong and all right."""
    generator = np.random.default_rng(0)
    if kind == "binary":
        rewards = generator.integers(0, 2, (PROMPTS, GROUP))
    else:
        rewards = generator.normal(0.5, 1.0, (PROMPTS, GROUP))
    rewards[0], rewards[1] = 0, 1
    return rewards.astype(np.float32)


def _mask() -> np.ndarray:
    """Token mask [P * G, T] of completions from one token to the full width."""
    lengths = np.random.default_rng(1).integers(1, LENGTH + 1, PROMPTS * GROUP)
    lengths[0], lengths[1] = 1, LENGTH
    return np.arange(LENGTH) < lengths[:, None]


def _policy(spread: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the policy and of the one that sampled; ratios reach both sides of any clipping."""
    generator = np.random.default_rng(4)
    behaviour = -generator.exponential(1.0, (PROMPTS * GROUP, LENGTH))
    new = np.minimum(behaviour + generator.normal(0, spread, behaviour.shape), -1e-3)
    return new.astype(np.float32), behaviour.astype(np.float32)


def _trainer(**settings) -> types.SimpleNamespace:
    """A trainer's settings, as on one process without gradient accumulation, and nowhere to log to but memory."""
    arguments = {
        "delta": None,
        "use_bias_correction_kl": False,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "steps_per_generation": 1,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": PROMPTS * GROUP,
        "gradient_checkpointing_kwargs": None,
    }
    defaults = {
        "accelerator": types.SimpleNamespace(
            device="cpu", num_processes=1, process_index=0, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        "args": types.SimpleNamespace(**{key: settings.pop(key, value) for key, value in arguments.items()}),
        "model": types.SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "ref_model": types.SimpleNamespace(),
        "beta": 0.0,
        "num_generations": GROUP,
        "num_iterations": 1,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LENGTH,
        "mask_truncated_completions": False,
        "pad_to_multiple_of": None,
        "_tokenizer": types.SimpleNamespace(pad_token_id=0),
        # Loss
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        # Rewards
        "reward_func_names": ["reward"],
        "reward_weights": torch.ones(1),
        "reward_clip_range": None,
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "normalize_advantages": False,
        # Generation by anything but the model itself
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "environment_factories": None,
        "environments": None,
        "tools": None,
        # Logs
        "log_multimodal": False,
        "_metrics": collections.defaultdict(lambda: collections.defaultdict(list)),
        "_logs": {key: collections.defaultdict(list) if key in ("rewards", "extra") else [] for key in _LOGS},
        "_pending_extra_logs": {},
        "_pending_metrics": {},
    }
    return types.SimpleNamespace(**{**defaults, **settings})


def _scored(trainer_class, rewards: np.ndarray, sampler: np.ndarray | None = None, **settings) -> dict:
    """What TRL makes of a batch of graded completions; `new` and `reference` are the models' log-probabilities."""
    new, reference = (torch.tensor(x[: rewards.size]) for x in _policy())
    completions = [[1] * int(n) for n in _mask().sum(-1)[: rewards.size]]
    prompts = [[1, 1]] * rewards.size
    trainer = _trainer(num_generations=rewards.shape[-1], **settings)
    trainer._calculate_rewards = lambda *_: torch.tensor(rewards.reshape(-1, 1))
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (
        new if model is trainer.model else reference,
        None,
        None,
    )
    if trainer_class is GRPOTrainer:
        sampled = None if sampler is None else [row[: len(ids)] for row, ids in zip(sampler, completions, strict=True)]
        trainer._generate = lambda _: (prompts, completions, None, completions, sampled, {}, None, None)
    else:
        trainer._generate = lambda _: (prompts, completions, completions)
    return trainer_class._generate_and_score_completions(trainer, [{"prompt": "?"} for _ in prompts])


def _advantages(trainer_class, rewards: np.ndarray, **settings) -> np.ndarray:
    return _scored(trainer_class, rewards, **settings)["advantages"].numpy().reshape(rewards.shape)


@pytest.mark.parametrize("kind", ["binary", "real"])
@pytest.mark.parametrize(
    ("trainer_class", "settings", "ours"),
    [
        # TRL's eps is 1e-4 throughout.
        (
            GRPOTrainer,
            {"scale_rewards": "group"},
            lambda r: rj.advantages.group_mean(r, normalize="std", ddof=1, eps=1e-4),
        ),
        (GRPOTrainer, {"scale_rewards": "none"}, rj.advantages.group_mean),
        (GRPOTrainer, {"scale_rewards": "batch"}, lambda r: rj.advantages.batch_normalized(r, ddof=1, eps=1e-4)),
        (RLOOTrainer, {}, rj.advantages.leave_one_out),
    ],
    ids=["group", "none", "batch", "rloo"],
)
def test_advantages(kind, trainer_class, settings, ours):
    rewards = _rewards(kind)
    theirs = _advantages(trainer_class, rewards, **settings)
    np.testing.assert_allclose(ours(rewards), theirs, **CLOSE)
    assert np.any(theirs != 0)


@pytest.mark.parametrize(
    ("trainer_class", "settings", "ours"),
    [
        (GRPOTrainer, {"scale_rewards": "group"}, {"normalize": "std", "eps": 1e-4}),
        (GRPOTrainer, {"scale_rewards": "none"}, {}),
        (RLOOTrainer, {}, None),
    ],
    ids=["group", "none", "rloo"],
)
def test_samples_without_a_reward(trainer_class, settings, ours):
    """NaN in TRL, a mask here: they get 0 and enter no statistic; one sample left of a group gets 0 too."""
    rewards = _rewards("real")
    missing = np.zeros(rewards.shape, bool)
    missing[1, 0], missing[2, :2], missing[3, 1:], missing[4] = True, True, True, True
    theirs = _advantages(trainer_class, np.where(missing, np.nan, rewards), **settings)
    function = rj.advantages.leave_one_out if ours is None else rj.advantages.group_mean
    np.testing.assert_allclose(function(rewards, mask=~missing, **(ours or {})), theirs, **CLOSE)


def test_a_uniform_group_is_exactly_zero_here_and_nearly_so_in_trl():
    """The mean of equal numbers need not be that number in float32, and TRL divides what is left by eps."""
    rewards = np.full((2, 7), 0.7, np.float32)
    theirs = _advantages(GRPOTrainer, rewards)
    assert np.all(np.abs(theirs) < 1e-2)
    assert np.all(np.asarray(rj.advantages.group_mean(rewards, normalize="std", eps=1e-4)) == 0)


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, RLOOTrainer])
def test_a_group_of_one_is_refused_here_and_zero_in_evaluation_there(trainer_class):
    rewards = np.ones((3, 1), np.float32)
    assert np.all(_advantages(trainer_class, rewards) == 0)
    ours = rj.advantages.group_mean if trainer_class is GRPOTrainer else rj.advantages.leave_one_out
    with pytest.raises(UserError, match="is 1, accepted is 2 or more"):
        ours(rewards)


def test_kl_in_the_reward():
    """RLOO subtracts k1, summed over the completion, from the reward before the baseline."""
    rewards, beta = _rewards("binary"), 0.1
    new, reference = _policy()
    kl = rj.kl.in_reward("k1", new, reference, _mask()).reshape(rewards.shape)
    theirs = _advantages(RLOOTrainer, rewards, beta=beta)
    np.testing.assert_allclose(rj.advantages.leave_one_out(rewards - beta * kl), theirs, **CLOSE)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("mode", "beyond"), [("truncate", "truncate"), ("mask", "drop")])
def test_importance_weights_for_a_sampler_with_other_numbers(level, mode, beyond):
    trained, sampler = _policy()[0], _policy()[1]
    theirs = _scored(
        GRPOTrainer,
        _rewards("binary"),
        sampler=sampler.tolist(),
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=f"{level}_{mode}",
        vllm_importance_sampling_clip_min=0.5,
        vllm_importance_sampling_clip_max=2.0,
    )["importance_sampling_ratio"].numpy()
    ours = rj.losses.importance_weights(trained, sampler, _mask(), cap=2.0, floor=0.5, level=level, beyond=beyond)
    np.testing.assert_allclose(ours, theirs * _mask(), **CLOSE)
    assert len(np.unique(theirs)) > 3


def test_a_loss_with_importance_weights():
    """The ratio is to the trainer's own old policy, the weight that policy's to the sampler's."""
    sampler = _reference()
    settings = {"loss_type": "dapo", "use_vllm": True, "vllm_importance_sampling_correction": True}
    weights = rj.losses.importance_weights(_policy()[1], sampler, _mask(), cap=2.0)
    loss = rj.Loss(rj.using(rj.losses.ppo_clip, clip_high=0.28), "token_mean", importance_cap=2.0)

    def ours(new, old, advantages):
        advantages = np.broadcast_to(advantages, old.shape)
        return rj.losses.weighted_mean(*loss(new, old, advantages, _mask(), sampler_log_probabilities=sampler))

    weights = torch.tensor(np.array(weights))
    _compare(GRPOTrainer, settings, ours, _mask(), importance_sampling_ratio=weights)


def _sequence_advantages() -> np.ndarray:
    """One advantage for all tokens of a sequence; the first two groups have none."""
    return np.asarray(rj.advantages.group_mean(_rewards("real"), normalize="std")).reshape(-1, 1)


def _compare(trainer_class, settings: dict, ours, mask: np.ndarray, policy=None, **more) -> None:
    """Loss and gradient with respect to log-probabilities; `ours(log_probabilities, behaviour, advantages)`."""
    new, behaviour = policy or _policy()
    advantages = _sequence_advantages()
    variable = torch.tensor(new, requires_grad=True)
    trainer = _trainer(**settings)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (variable, torch.zeros_like(variable), None)
    ids = torch.ones(mask.shape, dtype=torch.long)
    integers = torch.tensor(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :2],
        "prompt_mask": ids[:, :2],
        "completion_ids": ids,
        "completion_mask": integers,
        "advantages": torch.tensor(advantages[:, 0]),
        "old_per_token_logps": torch.tensor(behaviour),
        "old_logps": (torch.tensor(behaviour) * integers).sum(1),
        "num_items_in_batch": integers.sum(),
        "ref_per_token_logps": torch.tensor(_reference()),
        **more,
    }
    theirs = trainer_class._compute_loss(trainer, None, inputs)
    theirs.backward()
    value, gradient = jax.value_and_grad(lambda x: ours(x, behaviour, advantages))(new)
    np.testing.assert_allclose(value, theirs.item(), **CLOSE)
    np.testing.assert_allclose(gradient, variable.grad.numpy(), **CLOSE)
    assert np.any(np.asarray(gradient) != 0)


def _reference() -> np.ndarray:
    return -np.random.default_rng(6).exponential(1.0, (PROMPTS * GROUP, LENGTH)).astype(np.float32)


def _aggregated(surrogate, how: str, mask: np.ndarray, **aggregation):
    return lambda *a: rj.losses.weighted_mean(*rj.losses.aggregate(surrogate(*a, mask), mask, how, **aggregation))


def _clip(*arguments, **more):
    return rj.losses.ppo_clip(*arguments, clip_low=0.2, clip_high=0.28, **more)


def _gspo(*arguments):
    return rj.losses.gspo(*arguments, clip_low=0.2, clip_high=0.28)


@pytest.mark.parametrize("empty_rows", [False, True])
@pytest.mark.parametrize(
    ("settings", "surrogate", "how"),
    [
        ({"loss_type": "grpo"}, _clip, "sequence_mean"),
        ({"loss_type": "bnpo"}, _clip, "token_mean"),
        ({"loss_type": "dapo"}, _clip, "token_mean"),
        ({"loss_type": "dr_grpo"}, _clip, "constant_length"),
        ({"loss_type": "luspo"}, _clip, "sequence_sum"),
        # TRL's delta caps the ratio before the clip, ours the loss of a negative advantage: the same above 1 + high.
        ({"loss_type": "grpo", "delta": 1.5}, lambda *a: _clip(*a, dual_clip=1.5), "sequence_mean"),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, _gspo, "sequence_mean"),
        ({"loss_type": "dapo", "importance_sampling_level": "sequence"}, _gspo, "token_mean"),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, _gspo, "sequence_sum"),
        # TRL's epsilon_high is the cap of the weight itself; it has no floor.
        ({"loss_type": "cispo", "epsilon_high": 1.5}, lambda *a: rj.losses.cispo(*a, cap=1.5), "token_mean"),
        (
            {"loss_type": "sapo"},
            lambda *a: rj.losses.sapo(*a, tau_positive=1.0, tau_negative=1.05),
            "sequence_mean",
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_losses(settings, surrogate, how, empty_rows):
    """With `empty_rows`, some sequences have no token left in the mask, as when truncated ones are masked."""
    mask = _mask()
    if empty_rows:
        mask[::5] = False
    _compare(GRPOTrainer, settings, _aggregated(surrogate, how, mask), mask)


def test_constant_length_other_than_the_width():
    settings = {"loss_type": "dr_grpo", "max_completion_length": 50}
    _compare(GRPOTrainer, settings, _aggregated(_clip, "constant_length", _mask(), length=50), _mask())


def test_nothing_to_learn_is_zero_in_both():
    """All completions truncated and masked: 0 over a denominator of at least one there, 0 over 0 as 0 here."""
    mask = np.zeros((PROMPTS * GROUP, LENGTH), bool)
    for loss_type, how in (("grpo", "sequence_mean"), ("bnpo", "token_mean"), ("dapo", "token_mean")):
        trainer = _trainer(loss_type=loss_type)
        new, behaviour = (torch.tensor(x) for x in _policy())
        trainer._get_per_token_logps_and_entropies = lambda *_, new=new, **__: (new, torch.zeros_like(new), None)
        ids = torch.zeros(mask.shape, dtype=torch.long)
        inputs = dict.fromkeys(("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"), ids)
        inputs |= {"advantages": torch.ones(len(mask)), "old_per_token_logps": behaviour}
        loss = GRPOTrainer._compute_loss(trainer, None, {**inputs, "num_items_in_batch": ids.sum()})
        assert loss.item() == 0 == float(_aggregated(_clip, how, mask)(*_policy(), _sequence_advantages()))


def test_kl_in_the_loss_as_it_is_by_default():
    """TRL differentiates k3 itself, whose gradient is not that of KL(policy || reference); `kl.k3` is that term."""
    mask = _mask()
    _compare(
        GRPOTrainer,
        {"beta": 0.1},
        _aggregated(lambda x, *a: _clip(x, *a) + 0.1 * rj.kl.k3(x, _reference()), "sequence_mean", mask),
        mask,
    )


def test_kl_in_the_loss_with_bias_correction():
    """TRL then multiplies k3 by the ratio and differentiates both: the gradient of `kl.in_loss`, off-policy too.

    The value shown differs by that ratio, so it is compared without.
    """
    mask = _mask()
    new, behaviour = _policy()

    def ours(x, *rest):
        ratio = jax.numpy.exp(new - behaviour)
        kl = rj.kl.in_loss("k3", x, _reference(), behaviour)
        shown = jax.lax.stop_gradient((ratio - 1.0) * rj.kl.k3(x, _reference()))
        return _clip(x, *rest) + 0.1 * (kl + shown)

    _compare(
        GRPOTrainer,
        {"beta": 0.1, "use_bias_correction_kl": True},
        _aggregated(ours, "sequence_mean", mask),
        mask,
    )


def test_rloo_loss():
    """RLOO clips the ratio of whole completions, not length-normalised: `ppo_clip` with a completion as the action."""
    mask = _mask()

    def ours(log_probabilities, behaviour, advantages):
        sums = [jax.numpy.where(mask, x, 0.0).sum(-1, keepdims=True) for x in (log_probabilities, behaviour)]
        one = np.ones((len(mask), 1), bool)
        return rj.losses.weighted_mean(*rj.losses.aggregate(_clip(*sums, advantages, one), one, "sequence_mean"))

    _compare(RLOOTrainer, {}, ours, mask)


def test_rloo_loss_on_policy_is_reinforce():
    """At a ratio of one its gradient is that of -A log pi(y); its value is minus the mean advantage."""
    new, mask = _policy()[0], _mask()
    on_policy = _aggregated(rj.losses.reinforce, "sequence_sum", mask)

    def ours(x, behaviour, advantages):
        loss = on_policy(x, behaviour, advantages)
        return loss - jax.lax.stop_gradient(loss) - advantages.mean()

    _compare(RLOOTrainer, {}, ours, mask, policy=(new, new))
