"""Objectives as data: composition, what they need, which samples count, and the named ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import KL, OBJECTIVES, Loss, Objective, Overlong, advantages, losses, named_objective, using
from rlvr_jax.errors import UserError
from rlvr_jax.objectives import informative, rollout_signals

REWARDS = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
MASK = np.arange(3) < np.array([[3, 2, 1, 3], [1, 2, 3, 1]])[..., None]
LOG_P = np.where(MASK, -0.5, np.nan).astype(np.float32)
ENTROPIES = np.where(MASK, 0.7, 0.0).astype(np.float32)
SIGNALS = rollout_signals(REWARDS, LOG_P, ENTROPIES, MASK)


def test_signals_of_rollouts():
    np.testing.assert_array_equal(SIGNALS["lengths"], MASK.sum(-1))
    np.testing.assert_allclose(SIGNALS["sequence_log_probabilities"], -0.5 * MASK.sum(-1))


def test_using_is_equal_and_hashable_by_value():
    a = using(advantages.group_mean, normalize="std", ddof=0)
    assert a == using(using(advantages.group_mean, ddof=0), normalize="std")
    assert hash(a) == hash(using(advantages.group_mean, ddof=0, normalize="std"))
    assert a != using(advantages.group_mean, normalize="std")
    np.testing.assert_allclose(a([1, 0, 0, 0]), advantages.group_mean([1, 0, 0, 0], normalize="std", ddof=0))
    np.testing.assert_allclose(a([1, 0, 0, 0], ddof=1), advantages.group_mean([1, 0, 0, 0], normalize="std"))
    assert using(advantages.sign) is advantages.sign


def test_an_objective_is_hashable_and_compares_by_what_it_does():
    assert len({*OBJECTIVES.values()}) == len(OBJECTIVES), "two names for one objective"
    again = dataclasses.replace(OBJECTIVES["sign"], formula="another way to write it")
    assert again == OBJECTIVES["sign"]
    assert hash(again) == hash(OBJECTIVES["sign"])


def test_objectives_are_found_by_name():
    assert named_objective("sign") is OBJECTIVES["sign"]
    with pytest.raises(UserError, match="objective is 'grop', accepted are sign, half_reference, group_mean"):
        named_objective("grop")


def test_the_names_that_people_look_for():
    asked = """sign group_mean group_mean_std drgrpo grpo dapo gspo cispo rloo reinforce half_reference ngrpo f_grpo
    lens c2gspg fipo rl_zvp nsr psr w_reinforce spo max_rl"""
    assert set(asked.split()) <= set(OBJECTIVES)
    for objective in OBJECTIVES.values():
        assert objective.formula
        assert objective.source


def test_what_each_needs():
    needs = {name: set(objective.needs) for name, objective in OBJECTIVES.items() if objective.needs}
    assert needs == {
        "remax": {"greedy_rewards"},
        "opo": {"lengths"},
        "lens": {"sequence_log_probabilities", "lengths"},
        "c2gspg": {"sequence_log_probabilities", "lengths"},
        "care": {"sequence_log_probabilities", "lengths"},
        "spo": {"state", "divergence"},
        "ebpo": {"state"},
        "rl_zvp": {"entropies", "completion_mask"},
    }
    with pytest.raises(UserError, match=r"remax needs greedy_rewards; given are rewards, log_probabilities"):
        OBJECTIVES["remax"].advantages(SIGNALS)
    with pytest.raises(UserError, match="group_mean compares the samples"):
        OBJECTIVES["grpo"].check(1)
    with pytest.raises(UserError, match="single_stream needs state, divergence"):
        OBJECTIVES["spo"].check(4)


def test_a_new_objective_is_one_function_and_one_line():
    @advantages.advantage(samples=2)
    def best_only(rewards, mask=None):
        return jnp.where(rewards == rewards.max(-1, keepdims=True), 1.0, 0.0)

    got, state = Objective(best_only).advantages(SIGNALS)
    np.testing.assert_array_equal(got, [[1, 0, 0, 0], [1, 1, 1, 1]])
    assert state is None


def test_optional_signals_reach_the_advantage():
    """REINFORCE++ counts tokens where lengths are known; a mask marks missing rewards."""
    got, _ = OBJECTIVES["reinforce_plus_plus"].advantages(SIGNALS)
    np.testing.assert_allclose(got, advantages.reinforce_plus_plus(REWARDS, lengths=MASK.sum(-1)))
    valid = np.array([[True, True, False, False], [True] * 4])
    got, _ = OBJECTIVES["sign"].advantages(SIGNALS | {"mask": valid})
    np.testing.assert_array_equal(got, np.where(valid, 2 * REWARDS - 1, 0))


def test_memory_goes_in_and_comes_out():
    objective = OBJECTIVES["ebpo"]
    got, after = objective.advantages(SIGNALS, objective.start())
    expected, expected_after = advantages.shrinkage(REWARDS, advantages.start_shrinkage())
    np.testing.assert_array_equal(got, expected)
    jax.tree.map(np.testing.assert_array_equal, after, expected_after)


def test_overlong_penalty_by_hand():
    """18,432 tokens, 2,048 into a cache of 4,096: -1/2."""
    lengths = [1, 16384, 17408, 18432, 20480, 30000]
    np.testing.assert_allclose(Overlong().penalty(np.array(lengths)), [0, 0, -0.25, -0.5, -1, -1])
    got, _ = Objective(advantages.reinforce, overlong=Overlong(3, 2)).advantages(SIGNALS)
    np.testing.assert_allclose(got, REWARDS - np.clip((MASK.sum(-1) - 1) / 2, 0, 1))


def test_kl_in_the_reward():
    reference = np.where(MASK, -0.75, np.inf).astype(np.float32)
    objective = Objective(advantages.reinforce, Loss(kl=KL(0.1, "k1", "reward")))
    got, _ = objective.advantages(SIGNALS | {"reference_log_probabilities": reference})
    np.testing.assert_allclose(got, REWARDS - 0.1 * 0.25 * MASK.sum(-1), rtol=1e-5)
    with pytest.raises(UserError, match="reinforce needs reference_log_probabilities; given"):
        objective.advantages(SIGNALS)


def test_rewards_that_must_stay_binary_are_not_shaped():
    for advantage in (advantages.negative_only, using(advantages.pass_at_k, k=2)):
        for change in ({"overlong": Overlong(3, 2)}, {"loss": Loss(kl=KL(0.1, "k1", "reward"))}):
            with pytest.raises(UserError, match="takes rewards of 0 and 1: neither an overlong penalty"):
                Objective(advantage, **change)


def test_which_samples_count():
    truncated = np.array([[False, True, False, False], [True, False, False, False]])
    np.testing.assert_array_equal(informative(REWARDS), [True, False])
    np.testing.assert_array_equal(informative(REWARDS[:1], np.arange(4)[None] < 1), [False])
    assert not informative(REWARDS[:1], np.zeros((1, 4), bool))[0]
    dapo = OBJECTIVES["dapo"].loss_mask(MASK, REWARDS, truncated)
    np.testing.assert_array_equal(dapo, MASK & np.array([True, False])[:, None, None])
    kept = Objective(advantages.sign, drop_truncated=True).loss_mask(MASK, REWARDS, truncated)
    np.testing.assert_array_equal(kept, MASK & ~truncated[..., None])
    np.testing.assert_array_equal(OBJECTIVES["sign"].loss_mask(MASK, REWARDS, truncated), MASK)


def test_fully_truncated_and_dropped_batch_gives_zero_loss_and_gradient():
    objective = Objective(advantages.sign, Loss(losses.ppo_clip), drop_truncated=True)
    mask = objective.loss_mask(MASK, REWARDS, np.ones((2, 4), bool))
    ones = np.ones(MASK.shape, np.float32)
    for how in ("sequence_mean", "token_mean", "sequence_sum", "constant_length"):
        loss = dataclasses.replace(objective.loss, aggregation=how)
        value, gradient = jax.value_and_grad(lambda x, f=loss: losses.weighted_mean(*f(x, LOG_P, ones, mask)))(LOG_P)
        assert float(value) == 0.0
        assert np.all(np.asarray(gradient) == 0.0)


def test_loss_composes_surrogate_aggregation_and_kl():
    new, old, reference = np.full((3, 2, 2, 2), -1.0, np.float32) - np.array([0, 0, 0.5], np.float32).reshape(
        3, 1, 1, 1
    )
    ones, mask = np.repeat([[[1.0], [-1.0]]], 2, -1).repeat(2, 0).astype(np.float32), np.ones((2, 2, 2), bool)
    plain, weight = Loss()(new, old, ones, mask)
    assert (float(plain), float(weight)) == (0.0, 4.0)
    pulled, _ = Loss(kl=KL(0.1))(new, old, ones, mask, reference_log_probabilities=reference)
    np.testing.assert_allclose(pulled - plain, 4 * 0.1 * (np.exp(-0.5) + 0.5 - 1), rtol=1e-5)
    with pytest.raises(UserError, match=r"kl coefficient is 0\.1: reference_log_probabilities must be given"):
        Loss(kl=KL(0.1))(new, old, ones, mask)
    with pytest.raises(UserError, match="surrogate is c2gspg: rewards must be given"):
        Loss(losses.c2gspg)(new, old, ones, mask)
    _, weight = Loss(aggregation="constant_length", length=50)(new, old, ones, mask)
    assert float(weight) == 200.0


def test_importance_weights_multiply_the_policy_term_alone():
    """Decoupled: ratio to the behaviour policy 1.1, weights 0.5, 3 capped at 2, 1; then a KL that they leave alone."""
    new = jnp.log(jnp.array([[0.2, 0.2, 0.2]], jnp.float32))
    behaviour, mask = new - jnp.log(1.1), jnp.array([[True, True, False]])
    sampler = behaviour - jnp.log(jnp.array([[0.5, 3.0, jnp.nan]], jnp.float32))
    loss = Loss(losses.ppo_clip, "token_mean", importance_cap=2.0)

    def value(x, loss, **more):
        total, weight = loss(x, behaviour, jnp.full((1, 3), 4.0), mask, sampler_log_probabilities=sampler, **more)
        return total / weight

    got, gradient = jax.value_and_grad(value)(new, loss)
    np.testing.assert_allclose(got, -4 * 1.1 * (0.5 + 2.0) / 2, rtol=1e-5)
    np.testing.assert_allclose(gradient, [[-4 * 1.1 * 0.5 / 2, -4 * 1.1 * 2.0 / 2, 0.0]], rtol=1e-5)
    pulled = dataclasses.replace(loss, kl=KL(0.1, "k2"))
    with_kl, gradient = jax.value_and_grad(value)(new, pulled, reference_log_probabilities=new - 0.3)
    np.testing.assert_allclose(with_kl - got, 0.1 * 0.3**2 / 2, rtol=1e-3)
    # The KL's own weight is that of the policy against the sampler, without a cap.
    expected = -4 * 1.1 * np.array([0.5, 2.0]) / 2 + 0.1 * 0.3 * 1.1 * np.array([0.5, 3.0]) / 2
    np.testing.assert_allclose(gradient[0, :2], expected, rtol=1e-5)
    with pytest.raises(UserError, match=r"importance_cap is 2\.0: sampler_log_probabilities must be given"):
        loss(new, behaviour, new, mask)


@pytest.mark.parametrize("name", losses.SURROGATES)
def test_which_surrogates_allow_for_another_policy_that_sampled(name):
    """Those whose gradient it changes."""
    loss, mask = Loss(losses.SURROGATES[name]), np.ones((2, 3), bool)
    new, rewards = np.full((2, 3), -1.0, np.float32), np.array([1.0, 0.0], np.float32)

    def gradient(change):
        advantages = np.repeat(2 * rewards[:, None] - 1, 3, 1)
        return jax.grad(lambda x: loss(x, new - change, advantages, mask, rewards=rewards)[0])(new)

    assert loss.has_ratio == bool(np.any(gradient(np.float32(0.0)) != gradient(np.float32(-0.5))))


def test_clip_range():
    assert OBJECTIVES["sign"].loss.clip_range is None
    assert OBJECTIVES["grpo"].loss.clip_range == (0.8, 1.2)
    assert OBJECTIVES["dapo"].loss.clip_range == (0.8, 1.28)
    assert OBJECTIVES["ngrpo"].loss.clip_range == (0.84, 1.24)


def test_kl_in_the_loss_is_blind_to_masked_places():
    mask = np.array([[[True, False]]])
    bad = np.array([[[-1.0, -np.inf]]], np.float32)
    loss = Loss(kl=KL(0.5))

    def value(x):
        return loss(x, bad, np.zeros((1, 1, 2), np.float32), mask, reference_log_probabilities=bad - 0.5)[0]

    gradient = jax.grad(value)(bad)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient[0, 0], [0.5 * 0.5, 0], rtol=1e-5)
