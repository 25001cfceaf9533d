"""The update: gradients by hand, on any mesh, in any number of micro-batches, compiled once."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import PREFIX, TINY, relative, sampled_batch

from rlvr_jax.models import param_shardings, token_log_probabilities
from rlvr_jax.objectives import KL, OBJECTIVES, Loss, Objective, advantages, losses, using
from rlvr_jax.sharding import MeshShape, make_mesh, named_sharding
from rlvr_jax.training import UpdateSettings, init_state, make_batch, make_optimizer, update
from rlvr_jax.training import loss_and_gradients as eager_loss_and_gradients
from rlvr_jax.training.batch import trainer_log_probabilities
from rlvr_jax.training.compilations import compilations
from rlvr_jax.training.optimizer import OptimizerSettings

OPTIMIZER = OptimizerSettings(
    learning_rate=1e-3, warmup_steps=2, weight_decay=0.0, beta1=0.9, beta2=0.95, max_gradient_norm=1.0
)
SETTINGS = UpdateSettings(TINY, Loss(), OPTIMIZER)
ONE = jnp.float32(1.0)

loss_and_gradients = jax.jit(eager_loss_and_gradients, static_argnames=("settings", "rows"))


@pytest.fixture(scope="module")
def batch(params, prompts):
    return sampled_batch(params, prompts)


def with_rewards(batch, rewards, objective):
    rewards = jnp.asarray(rewards, jnp.float32)
    return jax.device_get(make_batch(batch.prompts, batch.rollouts, rewards, None, None, objective=objective)[0])


def first_state(params, mesh):
    placed = jax.device_put(params, param_shardings(TINY, mesh))
    return init_state(placed, 0, config=TINY, optimizer=make_optimizer(OPTIMIZER), mesh=mesh)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_loss_and_gradient_by_hand(params, batch, aggregation):
    settings = dataclasses.replace(SETTINGS, loss=Loss(aggregation=aggregation))
    loss, metrics, gradients = loss_and_gradients(params, batch, PREFIX, ONE, None, settings=settings, rows=1)
    mask, advantages = batch.rollouts.mask, batch.advantages[..., 0]

    def by_hand(params):
        log_p = token_log_probabilities(params, PREFIX, batch.prompts, batch.rollouts.tokens, ONE, config=TINY)
        sums = jnp.sum(jnp.where(mask, log_p, 0.0), -1) * advantages
        return -{
            "sequence_mean": (sums / mask.sum(-1)).mean(),
            "token_mean": sums.sum() / mask.sum(),
            "sequence_sum": sums.mean(),
            "constant_length": sums.mean() / mask.shape[-1],
        }[aggregation]

    expected, expected_gradients = jax.jit(jax.value_and_grad(by_hand))(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert relative(gradients, expected_gradients) < 1e-5
    assert float(metrics["sampler_difference_max"]) < 1e-4


def test_importance_weights_and_the_ratio_to_old_log_probabilities_by_hand(params, batch, one_device):
    """At moved parameters, sampled from the first ones, the second of two updates after others in between."""
    moved, old_policy = (jax.tree.map(lambda x, c=c: x * c, params) for c in (1.4, 1.2))
    arguments = (batch.prompts, batch.rollouts.tokens, PREFIX, ONE)
    old = trainer_log_probabilities(old_policy, *arguments, settings=SETTINGS, mesh=one_device)
    now = trainer_log_probabilities(moved, *arguments, settings=SETTINGS, mesh=one_device)
    rollouts, mask, advantages = batch.rollouts, batch.rollouts.mask, batch.advantages
    cap, surrogate = 1.02, using(losses.ppo_clip, clip_low=0.05, clip_high=0.05)
    settings = dataclasses.replace(SETTINGS, micro_batches=2, loss=Loss(surrogate, importance_cap=cap))
    later = dataclasses.replace(batch, old_log_probabilities=old)
    got, metrics, gradients = loss_and_gradients(moved, later, PREFIX, ONE, None, settings=settings, rows=1)

    def by_hand(params):
        log_p = token_log_probabilities(params, PREFIX, batch.prompts, rollouts.tokens, ONE, config=TINY)
        ratio, weight = jnp.exp(log_p - old), jnp.minimum(jnp.exp(old - rollouts.log_probabilities), cap)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.95, 1.05) * advantages)
        return -(jnp.where(mask, weight * gain, 0.0).sum(-1) / mask.sum(-1)).mean()

    expected, expected_gradients = jax.jit(jax.value_and_grad(by_hand))(moved)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert relative(gradients, expected_gradients) < 1e-5
    ratio, weight = np.exp(now - old)[mask], np.exp(old - rollouts.log_probabilities)[mask]
    outside = np.where(advantages[mask] > 0, ratio > 1.05, ratio < 0.95)
    np.testing.assert_allclose(metrics["clipped_share"], outside.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["importance_weight"], np.minimum(weight, cap).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["capped_share"], (weight > cap).mean(), rtol=1e-5)
    assert 0.05 < outside.mean() < 0.95
    assert 0.1 < (weight > cap).mean() < 0.9

    # The first update needs nothing but its own log-probabilities.
    first = loss_and_gradients(moved, batch, PREFIX, ONE, None, settings=settings, rows=1)
    same = dataclasses.replace(batch, old_log_probabilities=now)
    expected = loss_and_gradients(moved, same, PREFIX, ONE, None, settings=settings, rows=1)
    np.testing.assert_allclose(first[0], expected[0], rtol=1e-5)
    assert relative(first[2], expected[2]) < 1e-5
    assert float(first[1]["clipped_share"]) == 0.0


@pytest.mark.parametrize(("micro_batches", "packing"), [(1, 4), (2, 3), (8, 1)])
def test_micro_batches_and_packing_change_nothing(params, batch, micro_batches, packing):
    expected = loss_and_gradients(params, batch, PREFIX, ONE, None, settings=SETTINGS, rows=1)
    settings = dataclasses.replace(SETTINGS, micro_batches=micro_batches, remat="full", packing=packing)
    got = loss_and_gradients(params, batch, PREFIX, ONE, None, settings=settings, rows=1)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert relative(got[2], expected[2]) < 1e-5
    for name, value in expected[1].items():
        np.testing.assert_allclose(got[1][name], value, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(MeshShape(data=8), marks=pytest.mark.slow),
        pytest.param(MeshShape(data=1, fsdp=8), marks=pytest.mark.slow),
        MeshShape(data=2, fsdp=2, tensor=2),
    ],
    ids=str,
)
def test_the_same_update_on_every_mesh(params, batch, one_device, shape):
    """One device against eight: gradient within 1e-5, parameters after the step within 1e-6, in relative norm."""

    def on(mesh):
        placed = jax.device_put(batch, named_sharding(mesh, ("batch",)))
        prefix = jax.device_put(PREFIX, named_sharding(mesh))
        state, metrics = update(first_state(params, mesh), placed, prefix, ONE, None, settings=SETTINGS, mesh=mesh)
        shardings = param_shardings(TINY, mesh)
        jax.tree.map(
            lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or pytest.fail(str(s)), state.params, shardings
        )
        # The first moments are the clipped gradient times 1 - beta1.
        return jax.device_get((optax.tree.get(state.optimizer, "mu"), state.params, metrics))

    expected, got = on(one_device), on(make_mesh(shape))
    assert relative(got[0], expected[0]) < 1e-5
    assert relative(got[1], expected[1]) < 1e-6
    assert relative(expected[1], params) > 1e-5
    for name, value in expected[2].items():
        np.testing.assert_allclose(got[2][name], value, rtol=1e-4, atol=1e-6)


def test_uniform_groups_move_nothing_when_centred(params, batch, one_device):
    rewards = jnp.repeat(jnp.arange(8) % 2, 4).reshape(8, 4)
    silent = with_rewards(batch, rewards, OBJECTIVES["group_mean_std"])
    before = jax.device_get(params)
    state, metrics = update(
        first_state(params, one_device), silent, PREFIX, ONE, None, settings=SETTINGS, mesh=one_device
    )
    assert float(metrics["gradient_norm"]) == 0.0
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), before)
    loud = with_rewards(batch, rewards, OBJECTIVES["sign"])
    _, metrics = update(first_state(params, one_device), loud, PREFIX, ONE, None, settings=SETTINGS, mesh=one_device)
    assert float(metrics["gradient_norm"]) > 0.1


def test_masked_tokens_have_no_influence(params, batch):
    rollouts = batch.rollouts
    other = dataclasses.replace(rollouts, tokens=np.where(rollouts.mask, rollouts.tokens, 55).astype(np.int32))
    expected = loss_and_gradients(params, batch, PREFIX, ONE, None, settings=SETTINGS, rows=1)
    got = loss_and_gradients(
        params, dataclasses.replace(batch, rollouts=other), PREFIX, ONE, None, settings=SETTINGS, rows=1
    )
    np.testing.assert_array_equal(got[0], expected[0])
    assert relative(got[2], expected[2]) < 1e-6
    nothing = dataclasses.replace(batch, loss_mask=np.zeros_like(rollouts.mask))
    loss, _, gradients = loss_and_gradients(params, nothing, PREFIX, ONE, None, settings=SETTINGS, rows=1)
    assert float(loss) == 0.0
    assert float(optax.tree.norm(gradients)) == 0.0


def test_kl_pulls_back_to_the_reference(params, batch):
    """With zero advantages only the KL acts; at the reference it is zero with zero gradient, elsewhere it descends."""
    settings = dataclasses.replace(SETTINGS, loss=Loss(kl=KL(0.5)))
    silent = dataclasses.replace(batch, advantages=np.zeros_like(batch.advantages))

    def kl(policy):
        return loss_and_gradients(policy, silent, PREFIX, ONE, params, settings=settings, rows=1)

    loss, metrics, gradients = kl(params)
    assert abs(float(loss)) < 1e-9
    assert float(optax.tree.norm(gradients)) < 1e-4
    moved = jax.tree.map(lambda x: x * 1.05, params)
    loss, metrics, gradients = kl(moved)
    assert float(metrics["kl"]) > 1e-4
    stepped = jax.tree.map(lambda p, g: p - 1e-3 * g, moved, gradients)
    assert float(kl(stepped)[0]) < float(loss)


def test_optimizer_is_optax_adamw_with_clipping(params):
    gradients = jax.tree.map(lambda x: 3.0 * jnp.ones_like(x), params)
    ours, theirs = (
        make_optimizer(dataclasses.replace(OPTIMIZER, weight_decay=0.3)),
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(lambda i: jnp.minimum(1e-3, 5e-4 * (i + 1)), 0.9, 0.95, weight_decay=0.3, mask=is_matrix),
        ),
    )
    state, reference = ours.init(params), theirs.init(params)
    for factor in (1.0, -2.0, 0.5):
        gradients = jax.tree.map(lambda x, factor=factor: factor * x, gradients)
        updates, state = ours.update(gradients, state, params)
        expected, reference = theirs.update(gradients, reference, params)
        assert relative(updates, expected) < 1e-5
        # One that is not finite is as if it had not been.
        broken = jax.tree.map(lambda x: x * jnp.nan, gradients)
        none, same = ours.update(broken, state, params, finite=jnp.array(False))
        assert all(not leaf.any() for leaf in jax.tree.leaves(none))
        jax.tree.map(np.testing.assert_array_equal, same, state)


def is_matrix(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(("scale", "bias")), params)


def test_weight_decay_leaves_norms_alone(params):
    optimizer = make_optimizer(dataclasses.replace(OPTIMIZER, weight_decay=0.1))
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(jnp.abs(updates["norm"]["scale"]).max()) == 0.0
    assert float(jnp.abs(updates["embedding"]).max()) > 0.0


def test_nothing_recompiles_and_the_state_is_donated(params, batch, one_device):
    state = first_state(params, one_device)
    old = state.params["embedding"]
    state, _ = update(state, batch, PREFIX, ONE, None, settings=SETTINGS, mesh=one_device)
    assert old.is_deleted()
    # Written over, and not copied first.
    program = update.lower(state, batch, PREFIX, ONE, None, settings=SETTINGS, mesh=one_device).compile()
    copies = re.findall(r"copy\(%state_(\w+)", program.as_text())
    assert not [name for name in copies if "embedding" in name or "layers" in name]
    compiled = compilations()
    for _ in range(2):
        state, _ = update(state, batch, PREFIX, ONE, None, settings=SETTINGS, mesh=one_device)
    assert compilations() == compiled


def test_groups_and_completions_that_an_objective_drops_are_out_of_loss_and_denominator(params, batch):
    """DAPO on a batch with uniform groups is DAPO on the batch without them."""
    rewards = np.where(np.arange(8)[:, None] < 3, 1.0, [1.0, 0.0, 0.0, 0.0])
    settings = dataclasses.replace(SETTINGS, loss=OBJECTIVES["dapo"].loss)
    whole = with_rewards(batch, rewards, OBJECTIVES["dapo"])
    mixed = jax.tree.map(lambda x: x[3:], whole)
    expected = loss_and_gradients(params, mixed, PREFIX, ONE, None, settings=settings, rows=1)
    got = loss_and_gradients(params, whole, PREFIX, ONE, None, settings=settings, rows=1)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert relative(got[2], expected[2]) < 1e-5

    kept = with_rewards(batch, rewards, Objective(advantages.sign, drop_truncated=True)).loss_mask
    np.testing.assert_array_equal(kept, batch.rollouts.mask & ~batch.rollouts.truncated[..., None])
    assert 0 < kept.any(-1).sum() < kept.any(-1).size


def test_kl_in_the_reward_by_hand(params, batch, one_device):
    """Sign's reward minus beta times the summed log-ratio to another policy."""
    moved = jax.tree.map(lambda x: x * 1.05, params)
    arguments = (batch.prompts, batch.rollouts.tokens, PREFIX, ONE)
    reference = trainer_log_probabilities(moved, *arguments, settings=SETTINGS, mesh=one_device)
    objective = Objective(advantages.sign, Loss(kl=KL(0.1, "k1", "reward")))
    got, _ = make_batch(batch.prompts, batch.rollouts, batch.rewards, reference, None, objective=objective)
    difference = np.where(batch.rollouts.mask, batch.rollouts.log_probabilities - reference, 0.0).sum(-1)
    expected = 2 * (batch.rewards - 0.1 * difference) - 1
    np.testing.assert_allclose(got.advantages[..., 0], expected, rtol=1e-5, atol=1e-5)
    assert np.abs(difference).max() > 1e-3
