"""The decoder against transformers, the token tree against plain sequences, and the invariants of padding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from conftest import HYBRID, PREFIX, TINY, random_params, read, relative

from rlvr_jax.models import (
    RopeScaling,
    abstract_params,
    config_from_hugging_face,
    logical_axes,
    param_shardings,
    token_log_probabilities,
)
from rlvr_jax.models import logits as plain_logits
from rlvr_jax.models.attention_kernels import cudnn
from rlvr_jax.models.decoder import decoder
from rlvr_jax.models.linear import linear
from rlvr_jax.models.tree import Tree, run_tree
from rlvr_jax.models.weights import hugging_face_tensors
from rlvr_jax.records import Prompts
from rlvr_jax.sharding import MeshShape, make_mesh

SCALED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_5": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
}


def reference_model(config, params, family="llama"):
    """transformers' own model of a family, with our parameters in it."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling:
        rope = {"rope_type": "llama3", "rope_theta": config.rope_theta, **dataclasses.asdict(config.rope_scaling)}
    config_class, model_class = FAMILIES[family]
    more = {} if family == "qwen2" else {"attention_bias": config.attention_bias}
    if delta := config.delta:
        rope["partial_rotary_factor"] = config.partial_rotary_factor
        more["layer_types"] = ["linear_attention"] * (delta.block - 1) + ["full_attention"]
        more["layer_types"] *= config.num_attention_layers
        names = {"key_heads": "num_key_heads", "value_heads": "num_value_heads", "key_dim": "key_head_dim"}
        names |= {"value_dim": "value_head_dim", "taps": "conv_kernel_dim"}
        more |= {f"linear_{theirs}": getattr(delta, ours) for ours, theirs in names.items()}
    fields = config_class(
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
        **more,
    )
    # What transformers writes we read back as the same decoder.
    assert config_from_hugging_face(fields.to_dict()) == config
    model = model_class(fields)
    tensors = hugging_face_tensors(config, lambda name, layer: read(params, name, layer))
    loaded = model.load_state_dict({name: torch.tensor(value) for name, value in tensors}, strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    return model.eval()


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, tokens, segments=None):
    return plain_logits(params, tokens, segments, config=config)


VARIANTS = {
    "tied": ("llama", {}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "rope scaling": ("llama", {"rope_scaling": SCALED}),
    "llama with biases": ("llama", {"attention_bias": True, "output_bias": True}),
    "qwen2": ("qwen2", {"attention_bias": True}),
    "qwen3": ("qwen3", {"query_key_norm": True, "tie_word_embeddings": False}),
    "qwen3_5": ("qwen3_5", HYBRID),
    "qwen3_5 with biases": ("qwen3_5", {**HYBRID, "attention_bias": True, "output_bias": True}),
    "qwen3 with biases": ("qwen3", {"query_key_norm": True, "attention_bias": True, "output_bias": True}),
}


@pytest.mark.parametrize(
    "variant",
    # No published Qwen3.5 has biases.
    [pytest.param(name, marks=pytest.mark.slow) if name == "qwen3_5 with biases" else name for name in VARIANTS],
)
def test_logits_and_gradients_against_transformers(variant):
    """Logits within 2e-5 of the largest; the gradient of the mean token log-probability within 1e-4, each weight."""
    family, changes = VARIANTS[variant]
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (3, 20)).astype(np.int32)
    reference = reference_model(config, params, family)
    expected = reference(torch.tensor(tokens, dtype=torch.long)).logits
    assert expected.std() > 0.1
    got = logits(config, params, jnp.array(tokens))
    expected_values = expected.detach().numpy()
    np.testing.assert_allclose(got, expected_values, atol=2e-5 * np.abs(expected_values).max())

    def mean_log_probability(params):
        scores = jax.nn.log_softmax(logits(config, params, jnp.array(tokens))[:, :-1])
        return jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    scores = torch.log_softmax(expected[:, :-1], -1)
    torch.gather(scores, -1, torch.tensor(tokens[:, 1:, None], dtype=torch.long)).mean().backward()
    gradients = jax.grad(mean_log_probability)(params)
    theirs = dict(reference.named_parameters())
    for name, ours in hugging_face_tensors(config, lambda name, layer: read(gradients, name, layer)):
        gradient = theirs[name].grad.numpy()
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(ours, gradient, atol=1e-4 * np.abs(gradient).max(), err_msg=name)


@pytest.mark.parametrize("variant", ["tied", "rope scaling", "qwen2", "qwen3", "qwen3_5"])
def test_padded_and_packed_batches_against_transformers(variant):
    """Three sequences padded on the right, on the left, and packed in one line; within 2e-5 of the largest logit."""
    family, changes = VARIANTS[variant]
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config)
    model = reference_model(config, params, family)
    generator = np.random.default_rng(0)
    lengths = np.array([9, 1, 6])
    sequences = [generator.integers(0, config.vocab_size, n).astype(np.int32) for n in lengths]
    layouts = {
        "right": np.arange(9) < lengths[:, None],
        "left": np.arange(9) >= 9 - lengths[:, None],
        "packed": np.ones((1, 16), bool),
    }
    segments = {name: mask.astype(np.int32) for name, mask in layouts.items()}
    segments["packed"] = np.repeat([[4, 7, 4]], lengths, 1).astype(np.int32)

    def alone(sequence):
        with torch.no_grad():
            return model(torch.tensor(sequence[None], dtype=torch.long)).logits[0].numpy()

    plain = np.concatenate([alone(sequence) for sequence in sequences])
    bound = 2e-5 * np.abs(plain).max()
    for name, mask in layouts.items():
        tokens = np.full(mask.shape, 77, np.int32)
        tokens[mask] = np.concatenate(sequences)
        got = np.asarray(logits(config, params, tokens, segments[name]))[mask]
        np.testing.assert_allclose(got, plain, atol=bound, err_msg=name)
        if name == "packed" and family == "qwen3_5":
            continue  # without its GPU kernels transformers runs the state of one packed sequence into the next
        positions = np.concatenate([np.arange(n) for n in lengths])
        places = np.zeros(mask.shape, np.int64)
        places[mask] = positions
        attention_mask = None if name == "packed" else torch.tensor(mask)
        with torch.no_grad():
            ids, places = torch.tensor(tokens, dtype=torch.long), torch.tensor(places)
            theirs = model(ids, attention_mask=attention_mask, position_ids=places, use_cache=False).logits.numpy()
        np.testing.assert_allclose(got, theirs[mask], atol=bound, err_msg=name)
        tokens[~mask] = 5
        np.testing.assert_array_equal(np.asarray(logits(config, params, tokens, segments[name]))[mask], got)


@pytest.mark.parametrize(
    ("variant", "largest", "mean"),
    [("tied", 0.1, 0.02), ("qwen2", 0.1, 0.02), ("qwen3", 0.1, 0.02), ("qwen3_5", 1.5, 0.1)],
)
def test_bfloat16_stays_near_float32(variant, largest, mean):
    """In nats of log-probability, on weights that are ten times too loud; not much worse than transformers' own."""
    family, changes = VARIANTS[variant]
    config = dataclasses.replace(TINY, **changes)
    params = random_params(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (3, 20)).astype(np.int32)
    exact = jax.nn.log_softmax(logits(config, params, tokens))
    rounded = logits(dataclasses.replace(config, compute_dtype="bfloat16"), params, tokens)
    difference = np.abs(jax.nn.log_softmax(rounded.astype(jnp.float32)) - exact)
    assert 1e-4 < difference.max() < largest
    assert difference.mean() < mean
    with torch.no_grad():
        theirs = reference_model(config, params, family).bfloat16()(torch.tensor(tokens, dtype=torch.long)).logits
    assert difference.mean() < 1.2 * np.abs(torch.log_softmax(theirs.float(), -1).numpy() - exact).mean()


def plain_log_probabilities(config, params, sequences):
    """Of every token but the first of one sequence at a time, straight from its logits."""
    result = []
    for sequence in sequences:
        scores = jax.nn.log_softmax(logits(config, params, jnp.array(sequence)[None])[0])
        result.append(np.asarray(scores)[np.arange(len(sequence) - 1), sequence[1:]])
    return result


log_probabilities_of = jax.jit(token_log_probabilities, static_argnames=("config", "rows", "remat", "chunk"))


def completions_of(prompts, samples=3, length=5):
    tokens = np.random.default_rng(1).integers(1, TINY.vocab_size, (len(prompts.ids), samples, length))
    return tokens.astype(np.int32)


@pytest.mark.parametrize("changes", [{}, HYBRID], ids=["llama", "qwen3_5"])
def test_tree_equals_plain_sequences(changes, prompts):
    config = dataclasses.replace(TINY, **changes)
    params, completions = random_params(config), completions_of(prompts)
    got = log_probabilities_of(params, PREFIX, prompts, completions, jnp.float32(1.0), config=config)
    for i in (0, 3, 7):
        own = prompts.tokens[i][prompts.mask[i]]
        sequences = [np.concatenate([PREFIX, own, completion]) for completion in completions[i]]
        for sample, expected in enumerate(plain_log_probabilities(config, params, sequences)):
            np.testing.assert_allclose(got[i, sample], expected[-5:], atol=2e-5)


def test_rows_chunks_and_remat_change_nothing(params, prompts):
    completions = completions_of(prompts)

    def mean(params, **how):
        return token_log_probabilities(
            params, PREFIX, prompts, completions, jnp.float32(0.7), config=TINY, **how
        ).mean()

    expected, expected_gradient = jax.jit(jax.value_and_grad(mean))(params)
    for how in ({"rows": 4}, {"chunk": 7}, {"remat": "dots"}, {"rows": 8, "chunk": 4, "remat": "full"}):
        got, gradient = jax.jit(jax.value_and_grad(functools.partial(mean, **how)))(params)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), gradient, expected_gradient)


def test_a_fused_kernel_on_a_mesh_changes_nothing(params, prompts, monkeypatch):
    """The kernel of CUDA but for its implementation, in place of every attention: value and gradient."""
    completions = completions_of(prompts)
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    calls = []

    def stand_in(mesh, queries, kv_heads):
        calls.append(queries.shape)
        return functools.partial(cudnn, implementation="xla")

    def mean(params, mesh):
        return token_log_probabilities(
            params, PREFIX, prompts, completions, jnp.float32(1.0), config=TINY, rows=4, mesh=mesh
        ).mean()

    expected, expected_gradient = jax.jit(jax.value_and_grad(lambda params: mean(params, None)))(params)
    monkeypatch.setattr("rlvr_jax.models.attention.fused_kernel", stand_in)
    placed = jax.device_put(params, param_shardings(TINY, mesh))
    got, gradient = jax.jit(jax.value_and_grad(lambda params: mean(params, mesh)))(placed)
    assert set(calls) == {(3, 4, 8), (2, 4, 4, 8), (2, 3, 4, 4, 8)}, "prefix, prompts and completions"
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert relative(jax.device_get(gradient), jax.device_get(expected_gradient)) < 1e-5


@pytest.mark.parametrize("changes", [{}, HYBRID], ids=["llama", "qwen3_5"])
def test_padding_side_and_pad_ids_change_nothing(changes, prompts):
    config = dataclasses.replace(TINY, **changes)
    params, completions = random_params(config), completions_of(prompts)

    def of(prompts):
        return log_probabilities_of(params, PREFIX, prompts, completions, jnp.float32(1.0), config=config)

    order = np.argsort(prompts.mask, -1, kind="stable")
    left = Prompts(
        np.take_along_axis(prompts.tokens, order, -1), np.take_along_axis(prompts.mask, order, -1), prompts.ids
    )
    other_pads = Prompts(np.where(prompts.mask, prompts.tokens, 77).astype(np.int32), prompts.mask, prompts.ids)
    np.testing.assert_array_equal(of(other_pads), of(prompts))
    np.testing.assert_allclose(of(left), of(prompts), atol=1e-5)


def test_packed_completions_are_those_in_lines_of_their_own(params, prompts):
    """Two completions in one line after the same prompt, in a model that only attends; a state cannot fork so."""
    completions = jnp.array(completions_of(prompts, 2, 4))
    own = Tree(jnp.array(PREFIX), jnp.array(prompts.tokens), jnp.array(prompts.mask), completions)
    segments = jnp.broadcast_to(jnp.repeat(jnp.arange(2), 4), (8, 1, 8))
    packed = own._replace(completions=completions.reshape(8, 1, 8), segments=segments)
    hidden = [run_tree(decoder(TINY, params), TINY, tree)[1].reshape(8, 2, 4, -1) for tree in (own, packed)]
    np.testing.assert_allclose(hidden[1], hidden[0], atol=1e-5)
    config = dataclasses.replace(TINY, **HYBRID)
    with pytest.raises(ValueError, match="cannot be packed"):
        run_tree(decoder(config, random_params(config)), config, packed)


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
