"""Every advantage against hand calculation, and what all of them must have in common."""

import inspect
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from rlvr_jax import advantages
from rlvr_jax.errors import UserError
from rlvr_jax.objectives import using

# Rewards [1, 0, 0, 0] unless given; worked out by hand from the papers' formulas.
BY_HAND = [
    (advantages.sign, {}, [1, 0, 0, 0], [1, -1, -1, -1]),
    (advantages.sign, {}, [0, 0, 0, 0], [-1, -1, -1, -1]),
    (advantages.sign, {}, [1, 1, 1, 1], [1, 1, 1, 1]),
    (advantages.reinforce, {}, [1, 0, 0, 0], [1, 0, 0, 0]),
    (advantages.reinforce, {"baseline": 0.5}, [1, 0, 0, 0], [0.5, -0.5, -0.5, -0.5]),
    (advantages.positive_only, {}, [1, 0, 0, 0], [1, 0, 0, 0]),
    (advantages.negative_only, {}, [1, 0, 0, 0], [0, -1, -1, -1]),
    (advantages.weighted_reinforce, {}, [1, 0, 0, 0], [0.1, -1, -1, -1]),
    (advantages.weighted_reinforce, {"positive_weight": 1.0}, [1, 0, 0, 0], [1, -1, -1, -1]),
    (advantages.remax, {"greedy_rewards": 0.0}, [1, 0, 0, 0], [1, 0, 0, 0]),
    (advantages.remax, {"greedy_rewards": 1.0}, [1, 0, 0, 0], [0, -1, -1, -1]),
    (advantages.remax, {"greedy_rewards": 1.0}, [0, 0, 0, 0], [-1, -1, -1, -1]),
    (advantages.tasa, {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
    (advantages.tasa, {}, [1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
    (advantages.tasa, {}, [0, 0, 0, 0], [-0.25] * 4),
    (advantages.tasa, {}, [1, 1, 1, 1], [0.25] * 4),
    (advantages.group_mean, {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
    (advantages.group_mean, {}, [1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
    (advantages.group_mean, {"normalize": "std"}, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
    (advantages.group_mean, {"normalize": "std", "ddof": 0}, [1, 0, 0, 0], [1.7321, -0.5774, -0.5774, -0.5774]),
    (advantages.group_mean, {"normalize": "std"}, [1, 1, 0, 0], [0.8660, 0.8660, -0.8660, -0.8660]),
    (advantages.group_mean, {"normalize": "std"}, [0.2, 0.4, 0.6, 0.8], [-1.1619, -0.3873, 0.3873, 1.1619]),
    (advantages.group_mean, {}, [0.002, 0.004, 0.006, 0.008], [-0.003, -0.001, 0.001, 0.003]),
    (advantages.leave_one_out, {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
    (advantages.max_rl, {}, [1, 0, 0, 0], [3, -1, -1, -1]),
    (advantages.max_rl, {}, [1, 1, 0, 0], [1, 1, -1, -1]),
    (advantages.opo, {"lengths": [100, 200, 300, 400]}, [1, 0, 0, 0], [0.9, -0.1, -0.1, -0.1]),
    (advantages.opo, {"lengths": [0, 0, 0, 0]}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
    (advantages.opmd, {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
    (advantages.opmd, {"baseline": "log_mean_exp"}, [1, 0, 0, 0], [0.6426, -0.3574, -0.3574, -0.3574]),
    (advantages.opmd, {"baseline_shift": -0.1}, [0, 0, 0, 0], [0.1] * 4),
    (advantages.mapo, {}, [1, 0, 0, 0], [1.875, -0.625, -0.625, -0.625]),
    (advantages.mapo, {}, [1, 1, 1, 0], [0.4583, 0.4583, 0.4583, -1.375]),
    (advantages.focal, {"gamma": 0.5}, [1, 0, 0, 0], [1.2990, -0.4330, -0.4330, -0.4330]),
    (advantages.focal, {"gamma": 1.0}, [1, 0, 0, 0], [1.125, -0.375, -0.375, -0.375]),
    (advantages.focal, {"gamma": 0.5}, [1, 1, 1, 0], [0.25, 0.25, 0.25, -0.75]),
    (advantages.focal, {"gamma": 0.5, "wrong": -1.0}, [1, 1, 1, -1], [0.25, 0.25, 0.25, -0.75]),
    (advantages.ngrpo, {}, [0, 0, 0, 0], [-0.4472] * 4),
    (advantages.ngrpo, {}, [0] * 8, [-1 / 3] * 8),
    (advantages.ngrpo, {}, [1, 0, 0, 0], [1.0954, -0.7303, -0.7303, -0.7303]),
    (advantages.ngrpo, {}, [1, 1, 0, 0], [0.7303, 0.7303, -1.0954, -1.0954]),
    (advantages.virtual_rewards, {"samples": 1}, [0, 0, 0, 0], [-0.4472] * 4),
    (advantages.virtual_rewards, {"samples": 1}, [1, 1, 1, 1], [0.4472] * 4),
    (advantages.virtual_rewards, {"samples": 1}, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
    (advantages.pooled, {}, [[0, 0, 0, 0], [1, 0, 0, 0]], [[-0.3536] * 4, [2.4749, -0.3536, -0.3536, -0.3536]]),
    (advantages.pass_at_k, {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
    (advantages.pass_at_k, {}, [1, 1, 0, 0], [0.4472, 0.4472, -0.4472, -0.4472]),
    (advantages.pass_at_k, {}, [1, 1, 1, 0], [0] * 4),
    (advantages.pass_at_k, {"k": 4}, [1, 0, 0, 0, 0, 0, 0, 0], [1, *[-0.1429] * 7]),
    (advantages.pass_at_k, {"k": 4}, [1, 1, 0, 0, 0, 0, 0, 0], [*[0.5222] * 2, *[-0.1741] * 6]),
    (advantages.pass_at_k, {"k": 4}, [1, 1, 1, 1, 0, 0, 0, 0], [*[0.1204] * 4, *[-0.1204] * 4]),
    (advantages.pass_at_k, {"k": 4}, [1, 1, 1, 1, 1, 0, 0, 0], [0] * 8),
    (advantages.pkpo, {"baseline": "none"}, [1, 0, 0, 0], [0.5, 1 / 6, 1 / 6, 1 / 6]),
    (advantages.pkpo, {"baseline": "loo"}, [1, 0, 0, 0], [0.5, -0.2778, -0.2778, -0.2778]),
    (advantages.pkpo, {"baseline": "loo"}, [1, 1, 1, 0], [-1 / 6] * 4),
    (advantages.pkpo, {}, [1, 0, 0, 0], [0.5, 0, 0, 0]),
    (advantages.pkpo, {}, [1, 1, 0, 0], [1 / 3, 1 / 3, 0, 0]),
    (advantages.pkpo, {}, [1, 1, 1, 0], [1 / 6, 1 / 6, 1 / 6, 0]),
    (advantages.pkpo, {"k": 1}, [1, 0, 0.5], [1, 0, 0.5]),
    (advantages.batch_normalized, {}, [[1, 0, 0, 0], [0] * 4], [[2.1213, *[-0.7071] * 3], [0] * 4]),
    (advantages.reinforce_plus_plus, {}, [[1, 0, 0, 0], [0] * 4], [[2.4749, *[-0.3536] * 3], [-0.3536] * 4]),
    (advantages.reinforce_plus_plus_baseline, {}, [[1, 0, 0, 0], [0] * 4], [[2.2913, *[-0.7638] * 3], [0] * 4]),
    (advantages.gpg, {}, [[1, 0, 0, 0], [0] * 4], [[1.5, -0.5, -0.5, -0.5], [0] * 4]),
    (advantages.gpg, {"correct_by": "non_zero"}, [[1, 0, 0, 0], [0] * 4], [[6, -2, -2, -2], [0] * 4]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "settings", "rewards", "expected"), BY_HAND)
def test_by_hand(function, settings, rewards, expected):
    for kind in (list, lambda x: np.asarray(x, np.float64), lambda x: jnp.asarray(x, jnp.int32) if all_int(x) else x):
        got = function(kind(rewards), **settings)
        assert isinstance(got, jax.Array)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, atol=6e-5)


def all_int(x):
    return np.asarray(x).dtype.kind == "i"


# Success and failure for c of 8 right: TRL (eps 1e-4), verl, open-instruct (ddof 0), Dr. GRPO, RLOO, MaxRL.
GOLDEN = {
    1: ((2.4742, -0.3535), (2.4749, -0.3536), (2.6458, -0.3780), (0.875, -0.125), (1.0000, -0.1429), (7.0000, -1)),
    2: ((1.6198, -0.5399), (1.6202, -0.5401), (1.7321, -0.5774), (0.750, -0.250), (0.8571, -0.2857), (3.0000, -1)),
    3: ((1.2074, -0.7244), (1.2076, -0.7246), (1.2910, -0.7746), (0.625, -0.375), (0.7143, -0.4286), (1.6667, -1)),
    4: ((0.9352, -0.9352), (0.9354, -0.9354), (1.0000, -1.0000), (0.500, -0.500), (0.5714, -0.5714), (1.0000, -1)),
    5: ((0.7244, -1.2074), (0.7246, -1.2076), (0.7746, -1.2910), (0.375, -0.625), (0.4286, -0.7143), (0.6000, -1)),
    6: ((0.5399, -1.6198), (0.5401, -1.6202), (0.5774, -1.7321), (0.250, -0.750), (0.2857, -0.8571), (0.3333, -1)),
    7: ((0.3535, -2.4742), (0.3536, -2.4749), (0.3780, -2.6458), (0.125, -0.875), (0.1429, -1.0000), (0.1429, -1)),
}


@pytest.mark.parametrize("successes", GOLDEN)
def test_golden_table_of_other_libraries(successes):
    rewards = [1] * successes + [0] * (8 - successes)
    z_scores = [
        advantages.group_mean(rewards, normalize="std", **more)
        for more in ({"eps": 1e-4}, {"eps": 1e-6}, {"eps": 1e-8, "ddof": 0})
    ]
    others = [f(rewards) for f in (advantages.group_mean, advantages.leave_one_out, advantages.max_rl)]
    for got, expected in zip(z_scores + others, GOLDEN[successes], strict=True):
        np.testing.assert_allclose(got[jnp.array([0, 7])], expected, atol=6e-5)


# --- What all have in common. Every function is called by its signature, with made-up values for what it needs.

ENTROPIES = 0.3


def inputs_for(function, rewards):
    shape = np.shape(rewards)
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 9, shape).astype(np.float32)
    known = {
        "lengths": lengths,
        "sequence_log_probabilities": -lengths * rng.uniform(0.1, 1.0, shape).astype(np.float32),
        "greedy_rewards": np.zeros(shape[:-1], np.float32),
        "samples": 1.0,
        "entropies": rng.uniform(0.1, 2.0, (*shape, 3)).astype(np.float32),
        "completion_mask": np.ones((*shape, 3), bool),
        "scores": rng.uniform(0, 1, (*shape, 2)).astype(np.float32),
        "step_mask": np.ones((*shape, 2), bool),
        "gains": rng.normal(5, 2, (*shape, 2)).astype(np.float32),
        "divergence": np.full(shape[:-1], 0.01, np.float32),
        "step_size": 0.5,
    }
    if function.__name__ == "single_stream":
        known["state"] = advantages.start_beta_tracker(np.ones(shape[:-1]), 3)
    if function.__name__ == "shrinkage":
        known["state"] = advantages.ShrinkageState(*(np.full(shape[:-2], x, np.float32) for x in (10, 0.4, 0.45, 0.2)))
    if function.__name__ == "history_weighted":
        start = advantages.start_history(3, shape[:-2])
        known["state"] = advantages.HistoryState(start.anchor + 0.5, start.recent, start.seen + 1)
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty][1:]
    return {name: known[name] for name in needed}


def call(function, rewards, mask=None, **more):
    inputs = inputs_for(function, rewards) | ({} if mask is None else {"mask": mask}) | more
    result = function(rewards, **inputs)
    return result[0] if isinstance(result, tuple) else result


ALONE = [
    advantages.sign,
    advantages.reinforce,
    advantages.positive_only,
    advantages.negative_only,
    advantages.weighted_reinforce,
    advantages.remax,
    advantages.tasa,
    advantages.virtual_rewards,
    advantages.ngrpo,
]
"""A group of one is welcome."""
CENTRED = [advantages.group_mean, advantages.leave_one_out, advantages.max_rl, advantages.opo, advantages.opmd]
GROUP = [
    *CENTRED,
    advantages.mapo,
    advantages.focal,
    advantages.pass_at_k,
    advantages.pkpo,
    advantages.lens,
    advantages.c2gspg,
    advantages.care,
    advantages.rank_reward,
    advantages.zero_variance_entropy,
    advantages.step_scores,
    advantages.turn_gain,
]
BATCH_OF_GROUPS = [
    advantages.batch_normalized,
    advantages.reinforce_plus_plus_baseline,
    advantages.gpg,
    advantages.bnpo,
    advantages.shrinkage,
    advantages.history_weighted,
]
EVERY = [
    *ALONE,
    *GROUP,
    *BATCH_OF_GROUPS,
    advantages.pooled,
    advantages.reinforce_plus_plus,
    advantages.single_stream,
]
BINARY = [
    advantages.positive_only,
    advantages.negative_only,
    advantages.weighted_reinforce,
    advantages.mapo,
    advantages.pass_at_k,
    advantages.lens,
    advantages.c2gspg,
    advantages.care,
    advantages.zero_variance_entropy,
    advantages.step_scores,
    advantages.bnpo,
]
STANDARD = using(advantages.group_mean, normalize="std")
REWARDS = jnp.array([[1.0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 0]])


def test_the_lists_above_name_every_advantage():
    made_by_decorator = {
        value
        for value in vars(advantages).values()
        if inspect.isfunction(value)
        and next(iter(inspect.signature(value).parameters)) in ("rewards", "gradient_norms")
    }
    assert made_by_decorator == set(EVERY)


# What a uniform group gets. A number: all of its samples; "signed": of the outcome's side; "graded": they differ.
UNIFORM = {
    **{function.__name__: (0, 0) for function in GROUP + BATCH_OF_GROUPS},
    "sign": (-1, 1),
    "reinforce": (0, 1),
    "positive_only": (0, 1),
    "negative_only": (-1, 0),
    "weighted_reinforce": (-1, 0.1),
    "remax": (0, 1),
    "tasa": (-1 / 5, 1 / 5),
    "ngrpo": (-1 / 6**0.5, 0),
    "virtual_rewards": (-1 / 6**0.5, 1 / 6**0.5),
    "lens": ("graded", 0),
    "care": ("graded", 0),
    "zero_variance_entropy": ("graded", "graded"),
    "step_scores": ("graded", 0),
    "turn_gain": ("graded", "graded"),
    "rank_reward": (0, "graded"),
    "pooled": ("signed", "signed"),
    "reinforce_plus_plus": ("signed", "signed"),
    "single_stream": ("signed", "signed"),
    "shrinkage": ("signed", "signed"),
}


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_uniform_groups_get_what_the_table_says(function):
    got = np.asarray(call(function, REWARDS))
    for row, expected, side in zip((1, 2), UNIFORM[function.__name__], (-1, 1), strict=True):
        if expected == "graded":
            assert np.unique(got[row]).size > 1
        elif expected == "signed":
            assert np.all(got[row] * side > 0)
        elif expected == 0:
            assert np.all(got[row] == 0.0), "exactly zero, not nearly"
        else:
            np.testing.assert_allclose(got[row], expected, rtol=1e-5)


@pytest.mark.parametrize("function", [*CENTRED, STANDARD, advantages.batch_normalized, advantages.gpg, advantages.pkpo])
def test_rounding_leaves_nothing_of_a_uniform_group(function):
    values = np.array([0.1, 0.7, 1e-8, 1e8], np.float32)
    for size in (3, 7):
        for value in values:
            rewards = np.stack([np.full(size, value), np.arange(size)]).astype(np.float32)
            lengths = {"lengths": np.arange(1, 2 * size + 1).reshape(2, size)} if function is advantages.opo else {}
            assert np.all(np.asarray(function(rewards, **lengths))[0] == 0.0)


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_a_missing_sample_is_as_if_it_had_never_been_drawn(function):
    """Junk at masked places changes nothing, and the others get what they get in the smaller group."""
    junk = jnp.array([[3.0, jnp.nan], [jnp.inf, 0.0], [1.0, 1.0], [-1.0, jnp.nan]])
    padded = jnp.concatenate([REWARDS, junk], -1)
    mask = jnp.broadcast_to(jnp.arange(7) < 5, padded.shape)
    extra = inputs_for(function, padded)
    # The first five samples keep the inputs of the small group.
    small = {
        name: value if np.ndim(value) < 2 or not isinstance(value, np.ndarray) else value[:, :5]
        for name, value in extra.items()
    }

    def first(result):
        return np.asarray(result[0] if isinstance(result, tuple) else result)

    expected = first(function(REWARDS, **small))
    got = first(function(padded, mask=mask, **extra))
    assert np.all(got[:, 5:] == 0.0)
    np.testing.assert_allclose(got[:, :5], expected, rtol=2e-5, atol=1e-6)
    # Nothing valid at all: nothing to say. One valid sample in a group: nothing to be compared with.
    assert np.all(first(function(padded, mask=mask & False, **extra)) == 0.0)
    if function in [*CENTRED, advantages.mapo, advantages.focal, advantages.lens]:
        assert np.all(first(function(padded, mask=jnp.arange(7) == mask[:, :1], **extra)) == 0.0)


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_leading_axes_jit_and_vmap_agree(function):
    rewards = jax.random.bernoulli(jax.random.key(0), 0.4, (3, 4, 5)).astype(jnp.float32)
    inputs = inputs_for(function, rewards)

    def of(rewards, **arrays):
        settings = {k: v for k, v in inputs.items() if k not in arrays}
        result = function(rewards, **arrays, **settings)
        return result[0] if isinstance(result, tuple) else result

    arrays = {k: v for k, v in inputs.items() if not isinstance(v, float)}
    by_row = jnp.stack([of(rewards[i], **jax.tree.map(lambda x, i=i: x[i], arrays)) for i in range(3)])
    # One instruction may be fused differently from another: equal up to the last bits.
    close = {"rtol": 2e-5, "atol": 2e-6}
    np.testing.assert_allclose(jax.jit(of)(rewards, **arrays), by_row, **close)
    np.testing.assert_allclose(jax.vmap(lambda r, a: of(r, **a))(rewards, arrays), by_row, **close)


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_gradient_is_finite_everywhere_and_right_where_smooth(function):
    """With respect to the rewards: never NaN, and equal to finite differences where rewards may be any number.

    Of a random projection of the advantages, along a random direction.
    """
    rng = np.random.default_rng(3)
    rewards, direction = rng.uniform(0.1, 0.4, REWARDS.shape), rng.normal(size=REWARDS.shape)
    rewards = np.where(rng.uniform(size=REWARDS.shape) < 0.5, rewards, 1 - rewards)  # `tasa` has a kink at one half
    weights = rng.normal(size=jax.eval_shape(lambda r: call(function, r), REWARDS).shape).astype(np.float32)
    projected = jax.jit(jax.value_and_grad(lambda r: jnp.sum(weights * call(function, r))))
    assert np.all(np.isfinite(projected(REWARDS)[1]))
    if function in BINARY or function in (advantages.rank_reward, advantages.virtual_rewards):
        return
    step = 1e-3

    def at(distance):
        return projected(jnp.asarray(rewards + distance * direction, jnp.float32))

    numeric = (at(step)[0] - at(-step)[0]) / (2 * step)
    np.testing.assert_allclose(np.sum(at(0.0)[1] * direction), numeric, rtol=3e-2, atol=1e-2)


@pytest.mark.parametrize("function", GROUP + BATCH_OF_GROUPS, ids=lambda f: f.__name__)
def test_group_of_one_is_refused_by_name(function):
    with pytest.raises(UserError, match=f"{function.__name__} compares .* is 1, accepted is 2 or more"):
        call(function, jnp.ones((3, 1)))
    with pytest.raises(UserError, match="samples per prompt is 0"):
        call(function, jnp.ones((3, 0)))


@pytest.mark.parametrize(
    "function", [*ALONE, advantages.reinforce_plus_plus, advantages.single_stream], ids=lambda f: f.__name__
)
def test_group_of_one_is_welcome_where_nothing_is_compared(function):
    assert np.all(np.isfinite(call(function, jnp.array([[1.0], [0.0]]))))


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_unknown_rewards_are_an_error_or_a_failed_check_and_never_a_nan(function):
    rewards = REWARDS.at[0, 2].set(jnp.nan)
    with pytest.raises(UserError, match=rf"rewards of {function.__name__} are nan at \[0, 2\]: accepted are"):
        call(function, rewards)
    with pytest.raises(UserError, match="are inf at"):
        call(function, rewards.at[0, 2].set(jnp.inf))
    traced = jax.jit(lambda r: call(function, r))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert np.all(np.isfinite(traced(rewards.at[0, 2].set(bad))))
    checked = jax.jit(checkify.checkify(traced, errors=checkify.user_checks))
    with pytest.raises(checkify.JaxRuntimeError, match=f"rewards of {function.__name__} are nan: accepted are"):
        checked(rewards)[0].throw()
    assert checked(REWARDS)[0].get() is None


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_rewards_that_must_be_binary(function):
    rewards = REWARDS.at[0, 1].set(0.5)
    with pytest.raises(UserError, match=r"are 0\.5 at \[0, 1\]: accepted are 0 and 1"):
        call(function, rewards)
    checked = jax.jit(checkify.checkify(lambda r: call(function, r), errors=checkify.user_checks))
    with pytest.raises(checkify.JaxRuntimeError, match=r"are 0\.5: accepted are 0 and 1"):
        checked(rewards)[0].throw()


WRONG = {
    "A.group_mean([1, 0], normalize='max')": "normalize is 'max', accepted are none, std",
    "A.opmd([1, 0], baseline='median')": "baseline is 'median', accepted are mean, log_mean_exp",
    "A.gpg([[1, 0]], correct_by='luck')": "correct_by is 'luck', accepted are informative, non_zero",
    "A.pkpo([1, 0], baseline='mean')": "baseline is 'mean', accepted are none, loo, loo_minus_one",
    "A.pkpo([1, 0, 0], k=4)": "k of pkpo is 4, accepted is a number from 1 to 3 here",
    "A.pkpo([1, 0, 0], k=3, baseline='loo')": "k of pkpo is 3, accepted is a number from 1 to 2 here",
    "A.pass_at_k([1, 0, 0], k=0)": "k of pass_at_k is 0, accepted is a number from 1 to 3 here",
    "A.sign(['right', 'wrong'])": "rewards of sign are not an array of numbers",
    "losses.aggregate(x, x > 0, 'mean')": "aggregation is 'mean', accepted are sequence_mean, token_mean",
    "losses.topr(x, x, x, x > 0, level='word')": "level is 'word', accepted are sequence, token",
    "losses.importance_weights(x, x, x > 0, level='word')": "level is 'word', accepted are token, sequence",
    "losses.importance_weights(x, x, x > 0, beyond='clip')": "beyond is 'clip', accepted are truncate, drop",
    "kl.in_loss('k4', x, x, x)": "KL estimator is 'k4', accepted are k1, k2, k3",
    "rj.named_objective('grop')": "objective is 'grop', accepted are sign, half_reference",
    "rj.using(A.sign, speed=3)": "speed is 3, but sign has no such setting",
    "rj.Overlong(longest=10, cache=20)": "overlong cache is 20, accepted is a number from 1 to longest = 10",
}


def test_wrong_settings_are_named():
    """As a user meets them, in a process without run-time type checks, where each must speak for itself."""
    program = """
import sys
import numpy as np
import rlvr_jax as rj
from rlvr_jax import advantages as A, kl, losses
x = np.ones((2, 3), np.float32)
for line in sys.stdin:
    try:
        eval(line)
    except rj.errors.UserError as error:
        print(error)
    else:
        print("no error")
"""
    environment = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], input="\n".join(WRONG), capture_output=True, text=True, env=environment
    )
    messages = done.stdout.splitlines()
    assert len(messages) == len(WRONG), done.stderr
    for (line, expected), got in zip(WRONG.items(), messages, strict=True):
        assert got.startswith(expected), (line, got)


def test_rare_event_takes_the_hardest_solvable_and_the_easiest_unsolved():
    rates = jnp.array([[0.0, 0.125, 0.5, 0.875, 1.0], [0.0, 0.0, 1.0, 1.0, 0.5], [0.0, 1.0, 0.0, 1.0, 1.0]])
    expected = [[0, 0.5, 0, 0.5, 0], [0, 0, 0, 0, 1], [0] * 5]
    np.testing.assert_array_equal(advantages.rare_event(rates), expected)


@pytest.mark.parametrize("name", ["sign", "group_mean", "leave_one_out"])
def test_expected_update_is_a_multiple_of_the_success_gradient(name):
    """Enumerates all groups of 4: the expected sum of A_i grad log pi is c * grad p, with the constants of theory.

    With p = sigmoid(theta), grad log pi is (1 - p) on success and -p on failure, and grad p = p (1 - p).
    """
    p, size = 0.3, 4
    groups = jnp.array(list(itertools.product([0, 1], repeat=size)), jnp.float32)
    chance = jnp.prod(jnp.where(groups == 1, p, 1 - p), -1)
    score = jnp.where(groups == 1, 1 - p, -p)
    expected = jnp.sum(chance[:, None] * getattr(advantages, name)(groups) * score)
    multiple = {"sign": 2 * size, "group_mean": size - 1, "leave_one_out": size}[name]
    np.testing.assert_allclose(expected, multiple * p * (1 - p), rtol=1e-5)


def test_half_reference_is_half_of_sign():
    half = using(advantages.reinforce, baseline=0.5)
    np.testing.assert_array_equal(2 * half(REWARDS), advantages.sign(REWARDS))
