"""Statistics of the whole batch: fits, lengths, and the same numbers however the batch lies on eight devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import NamedSharding, PartitionSpec

from rlvr_jax import advantages
from rlvr_jax.objectives import using

REWARDS = np.random.default_rng(0).binomial(1, np.linspace(0, 1, 16)[:, None], (16, 8)).astype(np.float32)
LENGTHS = np.random.default_rng(1).integers(1, 50, REWARDS.shape).astype(np.float32)
MASK = np.random.default_rng(2).uniform(size=REWARDS.shape) < 0.8

TRACKER = advantages.start_beta_tracker(np.arange(16) % 5, 5)
SHRINKAGE = advantages.ShrinkageState(*(np.array(x, np.float32) for x in (10, 0.4, 0.45, 0.2)))
HISTORY = advantages.HistoryState(*(np.array(x, np.float32) for x in (0.5, [0.3, 0.4, 0.5], 5)))

STATELESS = {
    "batch_normalized": advantages.batch_normalized,
    "reinforce_plus_plus": advantages.reinforce_plus_plus,
    "reinforce_plus_plus_baseline": advantages.reinforce_plus_plus_baseline,
    "gpg": advantages.gpg,
    "gpg, non-zero": using(advantages.gpg, correct_by="non_zero"),
    "bnpo": advantages.bnpo,
}
WITH_LENGTHS = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
STATEFUL = {
    "single_stream": (advantages.single_stream, TRACKER, np.full(16, 0.01, np.float32)),
    "shrinkage": (advantages.shrinkage, SHRINKAGE),
    "history_weighted": (using(advantages.history_weighted, step_size=0.5), HISTORY),
}


def mesh_of(shape):
    return jax.make_mesh(shape, ("prompts", "samples")[: len(shape)], (jax.sharding.AxisType.Auto,) * len(shape))


@pytest.mark.parametrize(("name", "lengths"), [*((n, None) for n in STATELESS), *((n, LENGTHS) for n in WITH_LENGTHS)])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_eight_devices_agree_with_one(name, lengths, mask):
    """By jit, with prompts over devices and with the samples of each group over devices; by shard_map, by prompts."""

    def function(rewards, mask, lengths, axis_name=None):
        more = {} if lengths is None else {"lengths": lengths}
        return STATELESS[name](rewards, mask=mask, axis_name=axis_name, **more)

    inputs = [REWARDS, mask, lengths]
    expected = np.asarray(jax.jit(function)(*inputs))
    close = {"rtol": 1e-5, "atol": 1e-6}
    for shape, spec in (((8,), ("prompts",)), ((2, 4), ("prompts", "samples"))):
        place = NamedSharding(mesh_of(shape), PartitionSpec(*spec))
        placed = [None if x is None else jax.device_put(x, place) for x in inputs]
        np.testing.assert_allclose(jax.jit(function)(*placed), expected, **close)

    by_prompts = PartitionSpec("prompts")
    present = [x for x in inputs if x is not None]

    def local(*arrays):
        arrays = iter(arrays)
        return function(*(None if x is None else next(arrays) for x in inputs), axis_name="prompts")

    mapped = jax.shard_map(local, mesh=mesh_of((8,)), in_specs=by_prompts, out_specs=by_prompts)
    np.testing.assert_allclose(jax.jit(mapped)(*present), expected, **close)
    # Without the axis name a device would take its own prompts for the batch.
    alone = jax.jit(function)(*(None if x is None else x[6:8] for x in inputs))
    assert np.abs(np.asarray(alone) - expected[6:8]).max() > 1e-3


@pytest.mark.parametrize("name", STATEFUL)
def test_memory_is_the_same_on_eight_devices(name):
    function, state, *more = STATEFUL[name]
    expected = jax.jit(function)(REWARDS, state, *more)
    by_prompts, everywhere = PartitionSpec("prompts"), PartitionSpec()
    of_state = by_prompts if name == "single_stream" else everywhere
    mapped = jax.shard_map(
        functools.partial(function, axis_name="prompts"),
        mesh=mesh_of((8,)),
        in_specs=(by_prompts, of_state, *(by_prompts for _ in more)),
        out_specs=(by_prompts, of_state),
    )
    got = jax.jit(mapped)(REWARDS, state, *more)
    place = NamedSharding(mesh_of((2, 4)), PartitionSpec("prompts", "samples"))
    sharded = jax.jit(function)(jax.device_put(REWARDS, place), state, *more)
    for result in (got, sharded):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), result, expected)


def test_whitening_counts_tokens():
    """Each completion as often as it is long: the same as whitening the tokens one by one."""
    got = advantages.reinforce_plus_plus(REWARDS, lengths=LENGTHS)
    tokens = np.repeat(REWARDS.ravel(), LENGTHS.ravel().astype(int))
    expected = (REWARDS - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(got, expected, rtol=1e-5)

    got = advantages.reinforce_plus_plus_baseline(REWARDS, lengths=LENGTHS)
    centred = REWARDS - REWARDS.mean(-1, keepdims=True)
    tokens = np.repeat(centred.ravel(), LENGTHS.ravel().astype(int))
    np.testing.assert_allclose(
        got, (centred - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8), rtol=1e-4, atol=1e-6
    )


def test_bnpo_against_scipy():
    rewards = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    p = rewards.mean(-1)
    m, v = p.mean(), p.var(ddof=1)
    a, b = (m * (1 - m) / v - 1) * m, (m * (1 - m) / v - 1) * (1 - m)
    density = scipy.stats.beta.pdf(p, max(1 + a / 3, 1), max(1 + b / 3, 1))
    expected = np.where(p[:, None] > 0, (rewards - p[:, None]) / np.where(density > 0, density, 1)[:, None], 0.0)
    got = advantages.bnpo(rewards)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    np.testing.assert_allclose(got[0], [0.6730, -0.2243, -0.2243, -0.2243], atol=5e-5)


@pytest.mark.parametrize("rewards", [[[1, 0, 0, 0]], [[1, 0, 0, 0]] * 3, [[0, 1], [1, 0]]])
def test_bnpo_without_spread_is_plain_centring(rewards):
    np.testing.assert_allclose(advantages.bnpo(rewards), advantages.group_mean(rewards), rtol=1e-6)


@pytest.mark.parametrize("value", [0, 1])
def test_a_wholly_uniform_batch_is_silent_where_it_is_centred(value):
    rewards = jnp.full((4, 4), value)
    for function in STATELESS.values():
        assert np.all(np.asarray(function(rewards)) == 0.0)
