"""Surrogates, aggregation and importance weights: the number, the gradient and the mask."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rlvr_jax import losses
from rlvr_jax.objectives import using

MASK = jnp.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
VALUES = jnp.array([[1.0, 2.0, 6.0, jnp.nan], [5.0, jnp.inf, 0.0, 0.0], [7.0, 7.0, 7.0, 7.0]])

RNG = np.random.default_rng(0)
NEW = RNG.normal(-1.5, 0.5, (2, 3, 5)).astype(np.float32)
OLD = (NEW + RNG.normal(0, 0.4, NEW.shape)).astype(np.float32)
ADVANTAGES = np.repeat(RNG.normal(size=(2, 3, 1)), 5, -1).astype(np.float32)
LENGTHS = np.array([[5, 3, 1], [4, 0, 2]])
TOKENS = np.arange(5) < LENGTHS[..., None]
REWARDS = np.array([[1, 0, 1], [0, 0, 1]], np.float32)


def per_token(surrogate, new, old=OLD, advantages=ADVANTAGES, mask=TOKENS):
    more = {"rewards": REWARDS} if surrogate in (losses.c2gspg, losses.real) else {}
    return surrogate(new, old, advantages, mask, **more)


def sequence_loss(surrogate, new, **more):
    return losses.weighted_mean(*losses.aggregate(per_token(surrogate, new, **more), TOKENS, "sequence_mean"))


# --- The formulas, written out in torch with autograd as the reference for values and gradients.


def t_mean(x, mask):
    return (x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def t_ppo(new, old, a, m, low=0.2, high=0.2, dual=None):
    w = (new - old).exp()
    gain = torch.minimum(w * a, w.clamp(1 - low, 1 + high) * a)
    return -(gain if dual is None else torch.where(a < 0, torch.maximum(gain, dual * a), gain))


def t_gspo(new, old, a, m, low=3e-4, high=4e-4):
    s = t_mean(new - old, m).exp()
    return -torch.minimum(s * a, s.clamp(1 - low, 1 + high) * a) * m


def t_gspo_token(new, old, a, m, low=3e-4, high=4e-4):
    s = t_mean(new - old, m).exp().detach() * new.exp() / new.exp().detach()
    return -torch.minimum(s * a, s.clamp(1 - low, 1 + high) * a)


def t_cispo(new, old, a, m, cap=5.0, floor=0.0):
    return -(new - old).exp().clamp(floor, cap).detach() * a * new


def t_gmpo(new, old, a, m):
    side = torch.sign(a)
    d = new - old
    d = side * torch.minimum(side * d, side * d.clamp(-0.4, 0.4))
    return -t_mean(d, m).exp() * a


def t_sapo(new, old, a, m):
    tau = torch.where(a > 0, 1.0, 1.05)
    return -a * torch.sigmoid(tau * ((new - old).exp() - 1)) * 4 / tau


def t_topr(new, old, a, m, sequence=True):
    d = ((new - old) * m).sum(-1, keepdim=True) if sequence else new - old
    return -torch.where(a > 0, torch.ones(()), d.exp().clamp(0, 1).detach()) * a * new


def t_c2gspg(new, old, a, m, beta=0.01):
    c = t_mean(new, m).exp().clamp(1e-6, 1 - 1e-6)
    r = torch.tensor(REWARDS)[..., None]
    return (-a * c.log() - beta * (r * c.log() + (1 - r) * (1 - c).log())).expand(new.shape)


def t_real(new, old, a, m, tau=0.5):
    s, r = t_mean(new - old, m)[..., 0] / tau, torch.tensor(REWARDS)
    seen = m.sum(-1) > 0
    right = ((-s).exp() * (r > 0.5) * seen).sum(-1)
    wrong = (s.exp() * (r < 0.5) * seen).sum(-1)
    return (torch.log1p(right) + torch.log1p(wrong))[..., None, None].expand(new.shape)


REFERENCES = {
    "reinforce": (losses.reinforce, lambda new, old, a, m: -a * new),
    "ppo_clip": (losses.ppo_clip, t_ppo),
    "ppo_clip, higher": (using(losses.ppo_clip, clip_high=0.28), lambda *x: t_ppo(*x, high=0.28)),
    "ppo_clip, dual": (using(losses.ppo_clip, dual_clip=1.3), lambda *x: t_ppo(*x, dual=1.3)),
    "gspo": (losses.gspo, t_gspo),
    "gspo, wide": (using(losses.gspo, clip_low=0.2, clip_high=0.2), lambda *x: t_gspo(*x, 0.2, 0.2)),
    "gspo_token": (using(losses.gspo_token, clip_low=0.2, clip_high=0.2), lambda *x: t_gspo_token(*x, 0.2, 0.2)),
    "cispo": (using(losses.cispo, cap=1.2), lambda *x: t_cispo(*x, cap=1.2)),
    "cispo, floor": (using(losses.cispo, cap=1.2, floor=0.8), lambda *x: t_cispo(*x, cap=1.2, floor=0.8)),
    "gmpo": (losses.gmpo, t_gmpo),
    "sapo": (losses.sapo, t_sapo),
    "topr": (losses.topr, t_topr),
    "topr, token": (using(losses.topr, level="token"), lambda *x: t_topr(*x, sequence=False)),
    "c2gspg": (losses.c2gspg, t_c2gspg),
    "real": (losses.real, t_real),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_value_and_gradient_against_torch(name):
    ours, theirs = REFERENCES[name]
    mask = torch.tensor(TOKENS).float()
    new = torch.tensor(NEW, requires_grad=True)
    reference = theirs(new, torch.tensor(OLD), torch.tensor(ADVANTAGES), mask) * mask
    (reference.sum(-1) / mask.sum(-1).clamp(min=1)).mean().backward()
    np.testing.assert_allclose(per_token(ours, NEW), reference.detach(), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: sequence_loss(ours, x))(NEW)
    np.testing.assert_allclose(gradient, new.grad, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", losses.SURROGATES)
def test_masked_places_have_no_value_and_no_gradient_whatever_they_hold(name):
    surrogate = losses.SURROGATES[name]
    dirty = [np.where(TOKENS, x, bad) for x, bad in ((NEW, -np.inf), (OLD, np.nan), (ADVANTAGES, np.inf))]
    value = per_token(surrogate, *dirty)
    assert np.all(np.asarray(value)[~TOKENS] == 0.0)
    np.testing.assert_allclose(value, per_token(surrogate, NEW), rtol=1e-6)
    gradient = np.asarray(jax.grad(lambda x: per_token(surrogate, x, *dirty[1:]).sum())(jnp.asarray(dirty[0])))
    assert np.all(gradient[~TOKENS] == 0.0)
    assert np.all(np.isfinite(gradient))
    nothing = np.zeros_like(TOKENS)
    assert np.all(np.asarray(per_token(surrogate, NEW, mask=nothing)) == 0.0)
    assert np.all(np.isfinite(jax.grad(lambda x: per_token(surrogate, x, mask=nothing).sum())(NEW)))


@pytest.mark.parametrize("name", losses.SURROGATES)
def test_ratios_of_any_size_stay_finite(name):
    far = np.where(np.arange(5) % 2, -1000.0, 0.0) * np.ones_like(NEW)
    for new, old in ((far, far[..., ::-1] - 500), (far - 500, far)):
        value, gradient = jax.value_and_grad(lambda x, f=losses.SURROGATES[name], old=old: per_token(f, x, old).sum())(
            jnp.asarray(new, jnp.float32)
        )
        assert np.isfinite(value)
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("name", sorted(set(losses.SURROGATES) - {"c2gspg", "real"}))
def test_on_policy_all_have_the_gradient_of_reinforce(name):
    """Exactly on-policy, under sequence_mean; the two with labels have gradients of their own."""
    on_policy = jax.grad(lambda x, f=losses.SURROGATES[name]: sequence_loss(f, x, old=NEW))(jnp.asarray(NEW))
    expected = jax.grad(lambda x: sequence_loss(losses.reinforce, x, old=NEW))(jnp.asarray(NEW))
    np.testing.assert_allclose(on_policy, expected, rtol=1e-5, atol=1e-7)


def test_fipo_is_dual_clip_on_weighted_advantages():
    from rlvr_jax import advantages

    got = per_token(losses.fipo, NEW)
    weighted = advantages.future_kl(ADVANTAGES, NEW, OLD, TOKENS)
    expected = losses.ppo_clip(NEW, OLD, weighted, TOKENS, clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert np.abs(np.asarray(got) - np.asarray(per_token(using(losses.ppo_clip, clip_high=0.28), NEW))).max() > 1e-3
    gradient = jax.grad(lambda x: per_token(losses.fipo, x).sum())(NEW)
    fixed = jax.grad(lambda x: losses.ppo_clip(x, OLD, weighted, TOKENS, clip_high=0.28, dual_clip=10.0).sum())(NEW)
    np.testing.assert_allclose(gradient, fixed, rtol=1e-5, atol=1e-7)


def test_c2gspg_by_hand():
    """Coefficients of the gradient of log c: (r - mean) / (1 - c) + beta (r - c) / (1 - c)."""
    c = np.array([0.6, 0.5, 0.5, 0.8])
    log_p = np.log(c)[:, None].astype(np.float32)
    mask = np.ones((4, 1), bool)
    for rewards, ours, expected in (
        ([1, 0, 0, 0], [1.875, -0.5, -0.5, -1.25], [1.885, -0.51, -0.51, -1.29]),
        ([0, 0, 0, 0], [0] * 4, [-0.015, -0.01, -0.01, -0.04]),
        ([1, 1, 1, 1], [0] * 4, [0.01] * 4),
    ):
        advantage, r = np.array(ours, np.float32)[:, None], np.array(rewards, np.float32)
        gradient = jax.grad(lambda x, a=advantage, r=r: losses.c2gspg(x, x, a, mask, r).sum())(log_p)
        np.testing.assert_allclose(-gradient[:, 0], expected, atol=5e-4)


def test_hidden_align_by_hand():
    """Unit vectors with cosines .8, .9, 1 among the right completions: -.9; the wrong one is not looked at."""
    angles = np.array([0.0, np.arccos(0.8), 0.0])
    states = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    cosines = [states[0] @ states[1], states[0] @ states[2], states[1] @ states[2]]
    group = np.concatenate([3.0 * states, [[np.inf, np.nan]]]).astype(np.float32)
    got = losses.hidden_align(group, np.array([1.0, 1, 1, 0], np.float32))
    np.testing.assert_allclose(got, -np.mean(cosines), rtol=1e-5)
    gradient = jax.grad(lambda x: losses.hidden_align(x, np.array([1.0, 1, 1, 0], np.float32)))(jnp.asarray(group))
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[3] == 0)


def test_hidden_align_needs_two_right_answers():
    states = np.ones((3, 4, 8), np.float32)
    rewards = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    np.testing.assert_allclose(losses.hidden_align(states, rewards), [0, 0, -1], atol=1e-6)
    masked = losses.hidden_align(states, rewards, np.array([[True] * 4, [True] * 4, [True, False, False, False]]))
    np.testing.assert_allclose(masked, [0, 0, 0])
    assert np.all(np.isfinite(jax.grad(lambda x: losses.hidden_align(x, rewards).sum())(jnp.zeros_like(states))))


@pytest.mark.parametrize(
    ("how", "total", "weight"),
    [("sequence_mean", 3 + 5, 3), ("token_mean", 14, 4), ("sequence_sum", 14, 3), ("constant_length", 14, 12)],
)
def test_aggregate_by_hand_and_nothing_leaks_from_masked_places(how, total, weight):
    got_total, got_weight = losses.aggregate(VALUES, MASK, how)
    assert (float(got_total), float(got_weight)) == (total, weight)
    gradient = jax.grad(lambda x: losses.aggregate(x, MASK, how)[0])(VALUES)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[~np.asarray(MASK)] == 0)


def test_constant_length_is_a_choice():
    assert float(losses.aggregate(VALUES, MASK, "constant_length", length=100)[1]) == 300


@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_micro_batches_of_unequal_length_add_up(how):
    values, mask = jnp.arange(12.0).reshape(3, 4), MASK
    whole = losses.weighted_mean(*losses.aggregate(values, mask, how))
    parts = [losses.aggregate(values[i : i + 1], mask[i : i + 1], how) for i in range(3)]
    np.testing.assert_allclose(losses.weighted_mean(*map(sum, zip(*parts, strict=True))), whole, rtol=1e-6)


@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_nothing_to_learn_gives_zero_not_nan(how):
    empty = jnp.zeros((2, 3), bool)
    loss, gradient = jax.value_and_grad(lambda x: losses.weighted_mean(*losses.aggregate(x, empty, how)))(
        jnp.ones((2, 3))
    )
    assert float(loss) == 0.0
    assert np.all(np.asarray(gradient) == 0.0)


def test_importance_weights_by_hand():
    change = np.log(np.array([[0.5, 1.5, 4.0], [0.1, 10.0, 1.0]], np.float32))
    zero, mask = np.zeros((2, 3), np.float32), np.array([[True, True, True], [True, True, False]])
    weights = using(losses.importance_weights, cap=2.0)
    np.testing.assert_allclose(weights(change, zero, mask), [[0.5, 1.5, 2], [0.1, 2, 0]], rtol=1e-5)
    dropped = weights(change, zero, mask, beyond="drop", floor=0.3)
    np.testing.assert_allclose(dropped, [[0.5, 1.5, 0], [0, 0, 0]], rtol=1e-5)
    by_sequence = weights(change, zero, mask, level="sequence", cap=9.0)
    np.testing.assert_allclose(by_sequence, [[3, 3, 3], [1, 1, 0]], rtol=1e-5)
    dirty = weights(np.where(mask, change, np.nan), zero, mask)
    assert np.all(np.isfinite(dirty))
    gradient = jax.grad(lambda x: losses.importance_weights(x, zero, mask).sum())(jnp.asarray(change))
    assert np.all(np.asarray(gradient) == 0.0)


def test_every_surrogate_has_one_signature():
    first = ["log_probabilities", "behaviour_log_probabilities", "advantages", "mask"]
    for surrogate in losses.SURROGATES.values():
        assert list(inspect.signature(surrogate).parameters)[:4] == first
    assert set(losses.SURROGATES) == set(losses.Surrogate.__args__)
