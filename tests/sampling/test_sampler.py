"""The sampler against the trainer's own forward pass, and its independence of batch, mesh and neighbours."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import HYBRID, PREFIX, TINY, random_params

from rlvr_jax.errors import UserError
from rlvr_jax.models import param_shardings, token_log_probabilities
from rlvr_jax.records import Prompts
from rlvr_jax.sampling import Precision, Request, SamplingSettings, sample, stop_strings
from rlvr_jax.sharding import MeshShape, batch_shards, make_mesh, named_sharding

STOPS = np.array([7, 11, 40], np.int32)
TEXTS = [bytes(text) for text in np.random.default_rng(1).choice([*"abcdé".encode()], (96, 2)).tolist()]
"""What each token writes, two bytes; the last letter has two."""
STRINGS = ("abc", "bcab", "cé", "éa")


def first_string(tokens):
    """How many tokens there are when their text first holds one of STRINGS, by looking; None where it never does."""
    text = b""
    for number, token in enumerate(tokens, 1):
        text += TEXTS[token]
        if any(string.encode() in text for string in STRINGS):
            return number
    return None


def roll(
    params,
    prompts,
    *,
    config=TINY,
    seed=0,
    step=0,
    temperature=1.0,
    samples=3,
    length=12,
    stops=STOPS,
    prefix=PREFIX,
    rows=1,
    slots=None,
    limits=None,
    strings=(),
    **more,
):
    request = Request(
        prefix,
        prompts,
        stops,
        jnp.uint32(seed),
        jnp.int32(step),
        jnp.float32(temperature),
        limits,
        stop_strings=stop_strings(strings, TEXTS),
    )
    return sample(params, request, settings=SamplingSettings(config, samples, length, rows, slots, **more))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("prefix", [PREFIX, np.zeros(0, np.int32)], ids=["prefix", "no prefix"])
def test_log_probabilities_are_the_trainers(params, prompts, temperature, prefix):
    rollouts = jax.device_get(roll(params, prompts, temperature=temperature, prefix=prefix))
    mask = rollouts.mask
    for got, at in ((rollouts.log_probabilities, temperature), (rollouts.policy_log_probabilities, 1.0)):
        trainer = token_log_probabilities(params, prefix, prompts, rollouts.tokens, jnp.float32(at), config=TINY)
        np.testing.assert_allclose(got[mask], np.asarray(trainer)[mask], atol=1e-4)
        assert (got[~mask] == 0).all()
    assert mask.any(-1).all()
    assert (temperature == 0.7) == (np.abs(rollouts.log_probabilities - rollouts.policy_log_probabilities).max() > 0.1)


@pytest.mark.parametrize("what", ["int8_weights", "int8_cache"])
def test_8_bits_are_close(params, prompts, what):
    """Near enough for importance weights to correct, and not the same, or nothing was rounded."""
    rollouts = roll(params, prompts, slots=6, precision=Precision(**{what: True}))
    trainer = token_log_probabilities(params, PREFIX, prompts, rollouts.tokens, jnp.float32(1.0), config=TINY)
    difference = np.abs(np.asarray(rollouts.log_probabilities - trainer))
    mask = np.asarray(rollouts.mask)
    # The first token is drawn from what the prompt predicts, which is not rounded.
    assert difference[..., 0].max() < 1e-5
    assert 1e-5 < difference[mask].mean() < 0.01


@pytest.mark.parametrize(
    ("changes", "deviation", "bound"),
    [
        ({"attention_bias": True}, 0.1, 1e-5),
        ({"query_key_norm": True, "tie_word_embeddings": False}, 0.1, 1e-5),
        ({"query_key_norm": True, "compute_dtype": "bfloat16"}, 0.1, 0.1),
        # At 0.1 transformers' own cached and full passes are 1.1e-5 apart; it starts training from 0.02.
        (HYBRID, 0.05, 1e-5),
    ],
    ids=["qwen2", "qwen3", "qwen3 in bfloat16", "qwen3_5"],
)
def test_decoding_with_a_cache_is_the_full_forward_pass(prompts, changes, deviation, bound):
    """Token by token, on prompts of unequal length: log-probabilities within 1e-5 in float32, 0.1 nats in bfloat16."""
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config, deviation=deviation)
    rollouts = roll(params, prompts, config=config)
    trainer = token_log_probabilities(params, PREFIX, prompts, rollouts.tokens, jnp.float32(1.0), config=config)
    mask = np.asarray(rollouts.mask)
    difference = np.abs(np.asarray(rollouts.log_probabilities) - np.asarray(trainer))[mask]
    assert difference.max() < bound
    assert rollouts.log_probabilities.dtype == jnp.float32


def test_stop_token_is_kept_and_ends_the_completion(params, prompts):
    rollouts = jax.device_get(roll(params, prompts))
    ended = 0
    for tokens, mask, truncated in zip(
        rollouts.tokens.reshape(-1, 12), rollouts.mask.reshape(-1, 12), rollouts.truncated.ravel(), strict=True
    ):
        length = mask.sum()
        assert mask[:length].all()
        assert not np.isin(tokens[: length - 1], STOPS).any()
        assert truncated == (not np.isin(tokens[length - 1], STOPS))
        assert truncated <= (length == 12)
        assert (tokens[length:] == 0).all()
        ended += not truncated
    assert 0 < ended < 24
    pads = ~rollouts.mask
    assert (rollouts.log_probabilities[pads] == 0).all()
    assert (rollouts.entropies[pads] == 0).all()


def test_greedy_is_the_argmax_of_the_full_forward_pass(params, prompts):
    """Each greedy token must be at least as likely as any other token put in its place."""
    rollouts = roll(params, prompts, temperature=0.0, samples=1, length=4, stops=np.array([-1], np.int32))
    for position in range(4):
        others = jnp.repeat(rollouts.tokens, TINY.vocab_size, 1).at[:, :, position].set(jnp.arange(TINY.vocab_size))
        scores = token_log_probabilities(params, PREFIX, prompts, others, jnp.float32(1.0), config=TINY)[..., position]
        np.testing.assert_array_equal(scores.argmax(-1), rollouts.tokens[:, 0, position])


def test_rollouts_do_not_depend_on_the_batch_they_ran_in(params, prompts):
    whole = jax.device_get(roll(params, prompts))
    order = np.array([6, 1])
    part = jax.device_get(roll(params, jax.tree.map(lambda x: x[order], prompts), samples=2))
    np.testing.assert_array_equal(part.tokens, whole.tokens[order, :2])
    np.testing.assert_allclose(part.log_probabilities, whole.log_probabilities[order, :2], atol=1e-5)
    wider = Prompts(np.pad(prompts.tokens, ((0, 0), (3, 2))), np.pad(prompts.mask, ((0, 0), (3, 2))), prompts.ids)
    np.testing.assert_array_equal(roll(params, wider).tokens, whole.tokens)


LIMITS = np.random.default_rng(4).integers(1, 41, (8, 3))
"""Long enough for narrowing, all lengths mixed."""


@pytest.mark.parametrize(
    ("changes", "slots", "rows"),
    [({}, 5, 1), ({}, 24, 1), ({}, 16, 4), pytest.param(HYBRID, 10, 2, marks=pytest.mark.slow)],
    ids=["refilled", "narrowed", "both on four shares", "qwen3_5"],
)
def test_tokens_do_not_depend_on_the_number_of_slots(params, prompts, changes, slots, rows):
    """With refilled slots and narrowed ones, against every completion sampled in a place of its own to the end.

    Each ends where its text, looked at token by token, first holds a stop string, if nothing ends it before.
    """
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config, deviation=0.05) if changes else params
    same = {"config": config, "length": 40, "limits": LIMITS, "strings": STRINGS}
    one_by_one = [
        jax.device_get(
            roll(
                params,
                jax.tree.map(lambda x, i=i: x[i : i + 1], prompts),
                **same | {"limits": LIMITS[i : i + 1]},
                slots=3,
            )
        )
        for i in (0, 3, 7)
    ]
    got = jax.device_get(roll(params, prompts, slots=slots, rows=rows, **same))
    for i, alone in zip((0, 3, 7), one_by_one, strict=True):
        np.testing.assert_array_equal(got.tokens[i], alone.tokens[0])
        np.testing.assert_array_equal(got.mask[i], alone.mask[0])
        np.testing.assert_allclose(got.log_probabilities[i], alone.log_probabilities[0], atol=1e-5)
    tokens, mask = got.tokens.reshape(24, 40), got.mask.reshape(24, 40)
    lengths, limits, truncated = (x.ravel() for x in (mask.sum(-1), LIMITS, got.truncated))
    found = [first_string(line[kept]) for line, kept in zip(tokens, mask, strict=True)]
    by_string = np.array([number is not None for number in found])
    np.testing.assert_array_equal(np.array(found)[by_string], lengths[by_string])
    np.testing.assert_array_equal(truncated, ~(by_string | np.isin(tokens, STOPS).any(-1)))
    np.testing.assert_array_equal(lengths[truncated], limits[truncated])
    assert (lengths <= limits).all()
    # In some a string begins in the very first token.
    assert 2 in found
    assert 12 <= by_string.sum() <= 18
    assert truncated.sum() >= 4


@pytest.mark.parametrize("slots", [0, 1, 6])
def test_slots_that_the_shares_cannot_split_are_refused(params, prompts, slots):
    with pytest.raises(UserError, match=f"slots is {slots}, accepted is a multiple of data x fsdp"):
        roll(params, prompts, slots=slots, rows=4)


def test_two_steps_share_no_noise_and_one_step_repeats(params, prompts):
    first, again, second = (np.asarray(roll(params, prompts, step=step).tokens) for step in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    same = (first == second).reshape(24, 12).all(-1)
    assert same.mean() < 0.3
    assert len({row.tobytes() for row in first.reshape(24, 12)}) > 20


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (MeshShape(data=8), {}),
        (MeshShape(data=2, fsdp=2, tensor=2), {}),
        (MeshShape(data=1, fsdp=8), {}),
        (MeshShape(data=2, fsdp=2, tensor=2), HYBRID),
    ],
    ids=["data", "all axes", "fsdp", "qwen3_5 on all axes"],
)
def test_same_tokens_on_every_mesh(params, prompts, shape, changes):
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config, deviation=0.05) if changes else params
    expected = jax.device_get(roll(params, prompts, config=config, strings=STRINGS))
    mesh = make_mesh(shape)
    placed = jax.device_put(params, param_shardings(config, mesh))
    spread = jax.device_put(prompts, named_sharding(mesh, ("batch",)))
    got = jax.device_get(roll(placed, spread, config=config, rows=batch_shards(mesh), strings=STRINGS))
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_allclose(got.log_probabilities, expected.log_probabilities, atol=1e-5)


def test_records_are_checked_and_immutable(prompts):
    with pytest.raises(dataclasses.FrozenInstanceError):
        prompts.ids = None
    assert jax.tree.structure(prompts).num_leaves == 3
