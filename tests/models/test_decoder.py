"""The decoder against transformers, the token tree against plain sequences, and the invariants of padding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from conftest import PREFIX, TINY, read

from rlvr_jax.models import RopeScaling, abstract_params, logical_axes, token_log_probabilities
from rlvr_jax.models.decoder import decoder, linear
from rlvr_jax.models.tree import Tree, run_tree
from rlvr_jax.models.weights import hugging_face_tensors
from rlvr_jax.records import Prompts

SCALED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def reference_model(config, params) -> transformers.LlamaForCausalLM:
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling:
        rope = {"rope_type": "llama3", "rope_theta": config.rope_theta, **dataclasses.asdict(config.rope_scaling)}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=rope,
            tie_word_embeddings=config.tie_word_embeddings,
            max_position_embeddings=64,
        )
    )
    tensors = hugging_face_tensors(config, lambda name, layer: read(params, name, layer))
    missing = model.load_state_dict({name: torch.tensor(value) for name, value in tensors}, strict=False)
    assert not missing.unexpected_keys
    return model.eval()


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, tokens):
    """Logits of plain sequences `[N, length]`: each is a prompt's only completion behind its first token."""
    model = decoder(config, params)
    tree = Tree(jnp.zeros(0, jnp.int32), tokens[:, :1], jnp.ones((len(tokens), 1), bool), tokens[:, None, 1:])
    last, hidden, _ = run_tree(model, config, tree)
    return jnp.concatenate([last[:, None], hidden[:, 0]], 1) @ model.unembedding.T


@pytest.mark.parametrize("variant", ["tied", "untied", "rope scaling"])
def test_logits_against_transformers(variant, params, untied):
    config = dataclasses.replace(TINY, rope_scaling=SCALED if variant == "rope scaling" else None)
    if variant == "untied":
        config, params = untied
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (3, 20)).astype(np.int32)
    with torch.no_grad():
        expected = reference_model(config, params)(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits(config, params, jnp.array(tokens)), expected, atol=2e-4)


def plain_log_probabilities(params, sequences):
    """Of every token but the first of one sequence at a time, straight from its logits."""
    result = []
    for sequence in sequences:
        scores = jax.nn.log_softmax(logits(TINY, params, jnp.array(sequence)[None])[0])
        result.append(np.asarray(scores)[np.arange(len(sequence) - 1), sequence[1:]])
    return result


log_probabilities_of = jax.jit(token_log_probabilities, static_argnames=("config", "rows", "remat", "chunk"))


def completions_of(prompts, samples=3, length=5):
    tokens = np.random.default_rng(1).integers(1, TINY.vocab_size, (len(prompts.ids), samples, length))
    return tokens.astype(np.int32)


def test_tree_equals_plain_sequences(params, prompts):
    completions = completions_of(prompts)
    got = log_probabilities_of(params, PREFIX, prompts, completions, jnp.float32(1.0), config=TINY)
    for i in (0, 3, 7):
        own = prompts.tokens[i][prompts.mask[i]]
        sequences = [np.concatenate([PREFIX, own, completion]) for completion in completions[i]]
        for sample, expected in enumerate(plain_log_probabilities(params, sequences)):
            np.testing.assert_allclose(got[i, sample], expected[-5:], atol=2e-5)


def test_rows_chunks_and_remat_change_nothing(params, prompts):
    completions = completions_of(prompts)

    def mean(params, **how):
        return token_log_probabilities(
            params, PREFIX, prompts, completions, jnp.float32(0.7), config=TINY, **how
        ).mean()

    expected, expected_gradient = jax.jit(jax.value_and_grad(mean))(params)
    for how in ({"rows": 4}, {"chunk": 7}, {"remat": True}, {"rows": 8, "chunk": 4, "remat": True}):
        got, gradient = jax.jit(jax.value_and_grad(functools.partial(mean, **how)))(params)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), gradient, expected_gradient)


def test_padding_side_and_pad_ids_change_nothing(params, prompts):
    completions = completions_of(prompts)

    def of(prompts):
        return log_probabilities_of(params, PREFIX, prompts, completions, jnp.float32(1.0), config=TINY)

    order = np.argsort(prompts.mask, -1, kind="stable")
    left = Prompts(
        np.take_along_axis(prompts.tokens, order, -1), np.take_along_axis(prompts.mask, order, -1), prompts.ids
    )
    other_pads = Prompts(np.where(prompts.mask, prompts.tokens, 77).astype(np.int32), prompts.mask, prompts.ids)
    np.testing.assert_array_equal(of(other_pads), of(prompts))
    np.testing.assert_allclose(of(left), of(prompts), atol=1e-5)


def test_few_token_product_is_the_product():
    x, weight = jax.random.normal(jax.random.key(0), (3, 16)), jax.random.normal(jax.random.key(1), (24, 16))
    np.testing.assert_allclose(linear(x, weight), x @ weight.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda w: linear(x, w).sum())(weight), np.tile(x.sum(0), (24, 1)), rtol=1e-4, atol=1e-5
    )


def test_every_weight_is_described_once():
    shapes, axes = abstract_params(TINY), logical_axes(TINY)
    jax.tree.map(lambda shape, names: None if len(shape.shape) == len(names) else pytest.fail(str(names)), shapes, axes)
    assert axes["layers"]["attention"]["query"] == ("layers", "heads", "embed")
