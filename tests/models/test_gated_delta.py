"""The gated delta rule in its two forms and the whole layer, against transformers, and the invariants of padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from rlvr_jax.models.gated_delta import (
    Projected,
    Weights,
    chunked,
    initial_state,
    mix,
    project,
    read_out,
    recurrent,
    short_convolution,
)

HEADS, KEY_DIM, VALUE_DIM = 3, 8, 5
FORMS = {"recurrent": recurrent, **{f"chunks of {n}": functools.partial(chunked, chunk=n) for n in (4, 64)}}


def assert_close(got, expected, tolerance=1e-5):
    """Within a relative error in norm, leaf by leaf, and finite."""

    def check(got, expected):
        got, expected = (np.asarray(x, np.float64) for x in (got, expected))
        assert got.shape == expected.shape
        assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)

    jax.tree.map(check, got, expected)


def rule_inputs(length, batch=(2,), decay=1.0, seed=0):
    """Inputs of the rule as the layer makes them: unit keys, writes between 0 and 1, log-decays below 0."""
    generator = np.random.default_rng(seed)

    def normal(*shape):
        return generator.normal(size=shape).astype(np.float32)

    queries, keys = normal(2, *batch, length, HEADS, KEY_DIM)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    values, state = normal(*batch, length, HEADS, VALUE_DIM), normal(*batch, HEADS, KEY_DIM, VALUE_DIM)
    log_decay = -decay * np.exp(2 * normal(*batch, length, HEADS))
    beta = 1 / (1 + np.exp(-2 * normal(*batch, length, HEADS)))
    return tuple(jnp.array(x, jnp.float32) for x in (queries, keys, values, log_decay, beta, state))


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(form, inputs, mask=None):
    """Outputs, final state and the gradients of a scalar of both for every input."""

    def scalar(inputs):
        outputs, state = form(*inputs, mask)
        weight = jnp.cos(jnp.arange(outputs.size, dtype=jnp.float32)).reshape(outputs.shape)
        return (weight * outputs).sum() + (state**2).sum(), (outputs, state)

    (_, values), gradients = jax.value_and_grad(scalar, has_aux=True)(inputs)
    return values, gradients


def torch_rule(name, inputs):
    """As `value_and_gradients`, from transformers; it divides the queries by the root of K itself."""
    leaves = [torch.tensor(np.asarray(x), requires_grad=True) for x in inputs]
    queries, *others, state = leaves
    outputs, state = getattr(reference, name)(
        queries * KEY_DIM**0.5, *others, initial_state=state, output_final_state=True
    )
    weight = torch.cos(torch.arange(outputs.numel(), dtype=torch.float32)).reshape(outputs.shape)
    ((weight * outputs).sum() + (state**2).sum()).backward()
    arrays = [x.detach().numpy() for x in (outputs, state)], [x.grad.numpy() for x in leaves]
    return tuple(arrays[0]), tuple(arrays[1])


@pytest.mark.parametrize("length", [1, 130])
def test_rule_against_transformers(length):
    inputs = rule_inputs(length, decay=0.1)
    expected = torch_rule("torch_recurrent_gated_delta_rule", inputs)
    assert_close(torch_rule("torch_chunk_gated_delta_rule", inputs), expected)
    for form in FORMS.values():
        assert_close(value_and_gradients(form, inputs), expected)


@pytest.mark.parametrize("decay", [0.0, 0.01, 30.0])
def test_chunked_is_recurrent_whatever_the_decay(decay):
    """At 30 a token often forgets all, and running sums of a chunk reach the thousands."""
    inputs = rule_inputs(130, batch=(2, 3), decay=decay)
    assert_close(value_and_gradients(chunked, inputs), value_and_gradients(recurrent, inputs))


def test_repeated_keys():
    """One key written again and again, wholly: the worst conditioned system, whose powers would overflow float32."""
    queries, keys, values, log_decay, beta, state = rule_inputs(64)
    keys = jnp.broadcast_to(keys[:, :1], keys.shape)
    inputs = (queries, keys, values, 0 * log_decay, jnp.ones_like(beta), state)
    assert_close(value_and_gradients(chunked, inputs), value_and_gradients(recurrent, inputs))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rule_ignores_pads(form):
    """The same tokens behind three pads, and before three; all their inputs are NaN."""
    inputs = rule_inputs(7)
    outputs, state = jax.jit(form)(*inputs)
    mask = np.array([[False] * 3 + [True] * 7, [True] * 7 + [False] * 3])
    padded = []
    for x in inputs[:-1]:
        wide = np.full((2, 10, *x.shape[2:]), np.nan, np.float32)
        wide[mask] = np.asarray(x).reshape(-1, *x.shape[2:])
        padded.append(jnp.array(wide))
    (got, got_state), gradients = value_and_gradients(form, (*padded, inputs[-1]), jnp.array(mask))
    got = np.asarray(got)
    assert not got[~mask].any()
    assert_close((got[mask].reshape(outputs.shape), got_state), (outputs, state))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
    _, same = jax.jit(form)(*padded, inputs[-1], jnp.zeros((2, 10), bool))
    np.testing.assert_array_equal(same, inputs[-1])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rule_continues(form):
    form, inputs = jax.jit(form), rule_inputs(12)
    *tokens, start = inputs
    first, middle = form(*[x[:, :6] for x in tokens], start)
    second, end = form(*[x[:, 6:] for x in tokens], middle)
    assert_close((jnp.concatenate([first, second], 1), end), form(*inputs))
    nothing, same = form(*[x[:, :0] for x in tokens], start)
    assert nothing.shape == (2, 0, HEADS, VALUE_DIM)
    np.testing.assert_array_equal(same, start)


def test_shared_state_broadcasts():
    *tokens, state = rule_inputs(6, batch=(2, 3))
    shared = state[:, :1]
    for form in (recurrent, chunked):
        form = jax.jit(form)
        assert_close(form(*tokens, shared), form(*tokens, jnp.repeat(shared, 3, 1)))


def test_nothing_recompiles_by_values():
    compiled = jax.jit(lambda *inputs: chunked(*inputs))
    for seed in range(3):
        mask = jnp.array(np.random.default_rng(seed).random((2, 9)) < 0.5)
        compiled(*rule_inputs(9, decay=10.0**seed, seed=seed), mask)
    assert compiled._cache_size() == 1


def test_no_array_grows_with_the_square_of_the_length():
    inputs = rule_inputs(512, batch=())
    gradient = jax.grad(lambda inputs: chunked(*inputs, chunk=16)[0].sum())
    sizes = [x.aval.size for eqn in jax.make_jaxpr(gradient)(inputs).eqns for x in eqn.outvars]
    assert max(sizes) <= 512 * HEADS * max(16, 2 * (KEY_DIM + VALUE_DIM))


convolve = jax.jit(short_convolution)


def convolution_inputs(batch, length):
    generator = np.random.default_rng(0)
    shapes = (batch, length, 6), (6, 4), (batch, 3, 6)
    return tuple(jnp.array(generator.normal(size=shape), jnp.float32) for shape in shapes)


def test_convolution_against_torch_and_token_by_token():
    x, weight, history = convolution_inputs(2, 9)
    line = torch.tensor(np.concatenate([history, x], 1)).mT
    expected = torch.nn.functional.conv1d(line, torch.tensor(np.asarray(weight))[:, None], groups=6)
    outputs, last = convolve(x, weight, history)
    assert_close(outputs, torch.nn.functional.silu(expected).mT.numpy())
    np.testing.assert_array_equal(last, x[:, -3:])
    for i in range(9):
        output, history = convolve(x[:, i : i + 1], weight, history)
        assert_close(output[:, 0], outputs[:, i])
    np.testing.assert_array_equal(history, last)


def test_convolution_and_its_history_see_no_pad():
    spans = [(left, length) for length in (0, 1, 2, 3, 5) for left in (0, 1, 4)]
    x, weight, history = convolution_inputs(len(spans), 9)
    mask = np.array([[left <= i < left + length for i in range(9)] for left, length in spans])
    x = jnp.where(mask[..., None], x, jnp.nan)
    got, got_last = convolve(x, weight, history, jnp.array(mask))
    for i, (left, length) in enumerate(spans):
        outputs, last = convolve(x[i, left : left + length], weight, history[i])
        np.testing.assert_allclose(got[i], np.pad(outputs, ((left, 9 - left - length), (0, 0))), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(got_last[i], last)

    @jax.jit
    @jax.grad
    def gradient(inputs):
        return sum(y.sum() for y in short_convolution(*inputs, jnp.array(mask)))

    assert all(np.isfinite(g).all() for g in gradient((x, weight, history)))


CONFIG = Qwen3_5TextConfig(
    hidden_size=32,
    num_hidden_layers=4,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=6,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-3,
)
TENSORS = {
    "channels": "in_proj_qkv.weight",
    "gate": "in_proj_z.weight",
    "write": "in_proj_b.weight",
    "decay": "in_proj_a.weight",
    "convolution": "conv1d.weight",
    "log_rate": "A_log",
    "decay_bias": "dt_bias",
    "norm": "norm.weight",
    "output": "out_proj.weight",
}


@functools.partial(jax.jit, static_argnames="chunk")
def layer(weights, x, state, mask=None, chunk=64):
    """The whole layer on sequences; pads give 0."""
    if mask is not None:
        x = jnp.where(mask[..., None], x, 0)
    flat = project(weights, x.reshape(-1, x.shape[-1]))
    projected = Projected(*(part.reshape(*x.shape[:-1], -1) for part in flat))
    mixed, state = mix(weights, projected, state, mask, key_heads=2, chunk=chunk)
    outputs = read_out(weights, mixed.reshape(-1, *mixed.shape[-2:]), flat.gate, norm_eps=1e-3)
    return outputs.reshape(x.shape), state


@pytest.fixture(scope="module")
def module():
    """transformers' layer; no weight is left at a neutral value."""
    torch.manual_seed(0)
    module = reference.Qwen3_5GatedDeltaNet(CONFIG, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        module.A_log.copy_(torch.tensor([-2.0, 0.0, 1.0, 2.5]))
    return module


@pytest.fixture(scope="module")
def weights(module):
    tensors = {name: jnp.array(tensor.numpy()) for name, tensor in module.state_dict().items()}
    assert set(tensors) == set(TENSORS.values())
    weights = Weights(**{name: tensors[tensor] for name, tensor in TENSORS.items()})
    return weights._replace(convolution=weights.convolution[:, 0])


def hidden(*shape):
    return jnp.array(np.random.default_rng(3).normal(size=(*shape, 32)), jnp.float32)


def alone(module, x):
    """Output of one sequence without pads."""
    with torch.no_grad():
        return module(torch.tensor(np.asarray(x))[None])[0].numpy()


def test_layer_against_transformers(module, weights):
    x = hidden(3, 21)
    targets = np.random.default_rng(4).normal(size=x.shape).astype(np.float32)
    cache = DynamicCache(config=CONFIG)
    expected = module(torch.tensor(np.asarray(x)), cache=cache)
    module.zero_grad()
    (expected * torch.tensor(targets)).sum().backward()

    start = initial_state(weights, 2)
    got, state = layer(weights, x, start, chunk=8)
    assert_close(got, expected.detach().numpy())
    assert_close(state.memory, cache.get_recurrent_state(0).detach().numpy())
    assert_close(state.history, cache.get_conv_state(0).detach().mT.numpy()[:, -3:])
    gradient = jax.jit(jax.grad(lambda weights: (layer(weights, x, start, chunk=8)[0] * targets).sum()))(weights)
    tensors = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    expected = Weights(**{name: tensors[tensor] for name, tensor in TENSORS.items()})
    assert_close(gradient, expected._replace(convolution=expected.convolution[:, 0]))


def test_padded_batch_gives_each_sequence_what_it_gives_alone(module, weights):
    spans, x = [(0, 20), (0, 11), (9, 11), (0, 1), (19, 1), (18, 2), (4, 3)], hidden(7, 20)
    mask = np.array([[left <= i < left + length for i in range(20)] for left, length in spans])
    poisoned = jnp.where(mask[..., None], x, jnp.nan)
    start = initial_state(weights, 2)
    got, state = layer(weights, poisoned, start, jnp.array(mask))
    following, _ = layer(weights, x[:, :4], state)
    with torch.no_grad():
        theirs = module(torch.tensor(np.asarray(x)), attention_mask=torch.tensor(mask)).numpy()
    for i, (left, length) in enumerate(spans):
        own = slice(left, left + length)
        expected = alone(module, jnp.concatenate([x[i, own], x[i, :4]]))
        assert_close(got[i, own], expected[:-4])
        assert_close(theirs[i, own], expected[:-4])
        assert not np.asarray(got[i])[~mask[i]].any()
        # transformers lets pads on the right into its states; ours are as if they had not been there.
        assert_close(following[i], expected[-4:])

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def gradient(weights, x, start):
        outputs, state = layer(weights, x, start, jnp.array(mask))
        return (outputs**2).sum() + (state.memory**2).sum() + (state.history**2).sum()

    clean, dirty = gradient(weights, x, start), gradient(weights, poisoned, start)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(clean))


def test_token_by_token_is_the_full_forward(weights):
    x, state = hidden(2, 13), initial_state(weights, 2)
    expected, last = layer(weights, x, state)
    for i in range(13):
        got, state = layer(weights, x[:, i : i + 1], state)
        assert_close(got[:, 0], expected[:, i])
    assert_close(state, last)


def test_forked_states(weights):
    """A prefix, two padded prompts, three completions of each: as each sequence alone, forward and backward."""
    prefix, prompts, completions = hidden(5), hidden(2, 4), hidden(2, 3, 6)
    lengths = (4, 1)

    def tree(weights):
        _, state = layer(weights, prefix, initial_state(weights, 2))
        _, state = layer(weights, prompts, state, jnp.arange(4) < jnp.array(lengths)[:, None])
        outputs, _ = layer(weights, completions, jax.tree.map(lambda x: x[:, None], state))
        return outputs

    def plain(weights):
        def completed(prompt, own):
            past = jnp.broadcast_to(jnp.concatenate([prefix, prompt]), (3, 5 + len(prompt), 32))
            return layer(weights, jnp.concatenate([past, own], 1), initial_state(weights, 2))[0][:, -6:]

        return jnp.stack([completed(prompts[i, :n], completions[i]) for i, n in enumerate(lengths)])

    def with_gradient(run):
        def loss(weights):
            outputs = run(weights)
            return (outputs**2).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(weights)

    assert_close(with_gradient(tree), with_gradient(plain))


def test_bfloat16_keeps_its_types_and_stays_near(weights):
    x, state = hidden(2, 13), initial_state(weights, 2)
    expected, _ = layer(weights, x, state)
    narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    narrow = narrow._replace(log_rate=weights.log_rate, norm=weights.norm)
    got, state = layer(narrow, x.astype(jnp.bfloat16), initial_state(narrow, 2))
    assert (got.dtype, state.history.dtype, state.memory.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    assert_close(got, expected, 0.03)
