"""Advantages that remember: the numbers of one step, and what the memory becomes over many."""

import jax
import numpy as np
import pytest

from rlvr_jax import advantages


def array(x):
    return np.array(x, np.float32)


def test_single_stream_by_hand():
    """alpha = beta = 4, wrong: A = -1/2 before the update; memory 0.9 leaves (3.6, 4.6)."""
    tracker = advantages.BetaTracker(array([4]), array([4]))
    divergence = array([-0.06 * np.log2(0.9)])
    got, after = advantages.single_stream([[0.0]], tracker, divergence, whiten=False)
    np.testing.assert_allclose(got, [[-0.5]])
    np.testing.assert_allclose((after.alpha, after.beta), [[3.6], [4.6]], rtol=1e-6)
    np.testing.assert_allclose(after.value, [0.439], atol=5e-4)


def test_single_stream_memory_is_bounded_and_a_prompt_without_outcome_keeps_it():
    tracker = advantages.BetaTracker(array([4, 4, 4]), array([4, 4, 4]))
    mask = [[True], [True], [False]]
    _, after = advantages.single_stream([[1.0], [1.0], [0.0]], tracker, array([0, 9, 9]), mask, whiten=False)
    np.testing.assert_allclose(after.alpha, [0.96 * 4 + 1, 0.875 * 4 + 1, 4], rtol=1e-6)
    np.testing.assert_allclose(after.beta, [0.96 * 4, 0.875 * 4, 4], rtol=1e-6)


def test_beta_tracker_starts_from_offline_rollouts():
    """8 rollouts, 3 right: weight 8 in all, shrunk by half an observation on each side."""
    tracker = advantages.start_beta_tracker([3])
    np.testing.assert_allclose((tracker.alpha, tracker.beta), [[8 * 3.5 / 9], [8 * 5.5 / 9]], rtol=1e-6)
    nothing = advantages.start_beta_tracker([0.0], 0)
    np.testing.assert_allclose(nothing.value, [0.5])
    np.testing.assert_allclose(nothing.sampling_weights, [0.55])


def test_single_stream_whitening_and_convergence():
    """With a stationary policy the tracked value becomes the success rate."""
    p = np.linspace(0.1, 0.9, 64)
    rng = np.random.default_rng(0)
    tracker = advantages.start_beta_tracker(np.zeros(64), 0)
    step = jax.jit(advantages.single_stream)
    for _ in range(200):
        got, tracker = step(rng.binomial(1, p)[:, None].astype(np.float32), tracker, np.zeros(64, np.float32))
        np.testing.assert_allclose((np.mean(got), np.std(got, ddof=1)), (0, 1), atol=1e-4)
    assert np.abs(tracker.value - p).mean() < 0.08


def test_shrinkage_by_hand():
    """Mean .4, within .2, between .05, G = 4: S = 1/2."""
    state = advantages.ShrinkageState(array(10), array(0.4), array(0.45), array(0.2))
    rewards = [[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    got, after = advantages.shrinkage(rewards, state, whiten=False)
    np.testing.assert_allclose(got, [[-0.2] * 4, [0.3] * 4, [0.675, -0.325, -0.325, -0.325]], atol=1e-6)
    assert float(after.groups) == 13
    whitened, _ = advantages.shrinkage(rewards, state)
    flat = np.asarray(got)
    np.testing.assert_allclose(whitened, (flat - flat.mean()) / flat.std(ddof=1), rtol=1e-5)


def test_shrinkage_starts_as_group_mean_and_keeps_the_moments_of_all_groups():
    rng = np.random.default_rng(0)
    batches = rng.binomial(1, 0.3, (5, 8, 4)).astype(np.float32)
    state = advantages.start_shrinkage()
    first, _ = advantages.shrinkage(batches[0], state, whiten=False)
    np.testing.assert_allclose(first, advantages.group_mean(batches[0]), atol=1e-7)
    for batch in batches:
        _, state = advantages.shrinkage(batch, state)
    groups = batches.reshape(40, 4)
    means = groups.mean(-1)
    np.testing.assert_allclose(state.mean, means.mean(), rtol=1e-5)
    np.testing.assert_allclose(state.squares, ((means - means.mean()) ** 2).sum(), rtol=1e-5)
    np.testing.assert_allclose(state.within, groups.var(-1, ddof=1).mean(), rtol=1e-5)


def test_history_weighted_by_hand():
    """[1, 0, 0, 0] with anchor 1/2: 1.5 * 1.3 * e^.25 and -.5 * 1.3 * e^-.25."""
    state = advantages.HistoryState(array(0.5), array([0.4, 0.5, 0.6]), array(7))
    got, after = advantages.history_weighted([[1, 0, 0, 0]], state, step_size=2.0)
    np.testing.assert_allclose(got, [[2.5038, -0.5062, -0.5062, -0.5062]], atol=5e-5)
    rate = 2.0 * np.std([0.4, 0.5, 0.6])
    np.testing.assert_allclose(after.anchor, 0.5 + rate * (0.25 - 0.5), rtol=1e-5)
    np.testing.assert_allclose(after.recent, [0.5, 0.6, after.anchor])


def test_history_weighted_starts_with_the_plain_mean():
    state = advantages.start_history(3)
    batches = [[[1, 0, 0, 0]], [[1, 1, 1, 0]], [[1, 1, 0, 0]]]
    first, _ = advantages.history_weighted(batches[0], state, step_size=1.0)
    np.testing.assert_allclose(first, 1.3 * np.asarray(advantages.group_mean(batches[0], normalize="std")), rtol=1e-6)
    for batch in batches:
        _, state = advantages.history_weighted(batch, state, step_size=1.0)
    np.testing.assert_allclose(state.anchor, 0.5, rtol=1e-6)
    _, same = advantages.history_weighted([[1, 0]], state, [[False, False]], step_size=1.0)
    assert float(same.anchor) == float(state.anchor)


@pytest.mark.parametrize("start", [advantages.start_shrinkage, lambda: advantages.start_history(2)])
def test_states_are_pytrees_that_scan(start):
    function = advantages.shrinkage if start is advantages.start_shrinkage else advantages.history_weighted
    more = {} if function is advantages.shrinkage else {"step_size": 0.5}
    batches = np.random.default_rng(0).binomial(1, 0.4, (6, 3, 4)).astype(np.float32)

    def step(state, batch):
        got, state = function(batch, state, **more)
        return state, got

    last, _ = jax.jit(lambda s, b: jax.lax.scan(step, s, b))(start(), batches)
    one_by_one = start()
    for batch in batches:
        one_by_one, _ = step(one_by_one, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), last, one_by_one)


@pytest.mark.parametrize(
    ("function", "state", "more"),
    [
        (advantages.single_stream, advantages.start_beta_tracker([1, 2], 4), {"divergence": np.zeros(2, np.float32)}),
        (advantages.shrinkage, advantages.start_shrinkage(), {}),
        (advantages.history_weighted, advantages.start_history(2), {"step_size": 0.5}),
    ],
)
def test_an_unknown_reward_inside_jit_spoils_no_memory(function, state, more):
    step = jax.jit(lambda rewards, state: function(rewards, state, **more))
    _, state = step(np.array([[1.0, 0.0], [1.0, 1.0]]), state)
    got, after = step(np.array([[1.0, np.nan], [1.0, 0.0]]), state)
    assert np.all(np.isfinite(got))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after))
    if function is advantages.single_stream:  # the other prompt goes on learning
        assert (after.alpha[0], after.alpha[1]) == (state.alpha[0], 0.96 * state.alpha[1] + 1)
