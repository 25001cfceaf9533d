"""Attention over shared sources equals plain attention over the keys each query sees, and kernels equal it."""

import functools
import importlib.util
import inspect
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rlvr_jax.models import attention
from rlvr_jax.models.attention import Source, attend, attend_causally
from rlvr_jax.models.attention_kernels import cudnn, fused_kernel, sharded, splash
from rlvr_jax.models.linear import Int8Array, linear
from rlvr_jax.sharding import MeshShape, make_mesh

INTERPRETED = {
    "splash": functools.partial(splash, interpret=True, largest_block=128),
    # The same call with the same arguments, but for the implementation.
    "cudnn": functools.partial(cudnn, implementation="xla"),
}
"""Both kernels where there is no accelerator."""


def test_8_bit_keys_and_values_count_as_what_they_stand_for():
    keys, values, queries = (jax.random.normal(jax.random.key(i), (3, 2, 5, 4)) for i in range(3))
    rounded = Int8Array.of(keys), Int8Array.of(values)
    meant = [x.values * x.scale[..., None] for x in rounded]
    for x, y in zip(meant, (keys, values), strict=True):
        assert np.all(np.abs(x - y).max(-1) <= np.abs(y).max(-1) / 254 * 1.001)
    source = Source(rounded[0].values.mT, rounded[1].values, scales=tuple(x.scale for x in rounded))
    # Two heads of queries for each of keys, five queries.
    queries = jnp.concatenate([queries, -queries], 1).swapaxes(1, 2)
    expected = attend(queries, [Source(meant[0].mT, meant[1])])
    np.testing.assert_allclose(attend(queries, [source]), expected, atol=1e-5)
    weight = Int8Array.of(keys[0, 0])
    np.testing.assert_allclose(linear(values[0, 0], weight), values[0, 0] @ meant[0][0, 0].T, atol=1e-6)
    np.testing.assert_array_equal(Int8Array.of(jnp.zeros((2, 3))).values, 0)


def test_shared_sources_equal_copied_keys():
    keys = iter(jax.random.split(jax.random.key(0), 8))
    prompts, samples, length, heads, kv_heads, width = 2, 3, 4, 4, 2, 8

    def normal(*shape):
        return jax.random.normal(next(keys), shape)

    queries = normal(prompts, samples, length, heads, width)
    prefix = normal(kv_heads, 5, width), normal(kv_heads, 5, width)
    prompt = normal(prompts, kv_heads, 6, width), normal(prompts, kv_heads, 6, width)
    visible = jnp.arange(6) < jnp.array([[4], [6]])
    seen = (None, visible[:, None, None])
    sources = [Source(k.mT, v, see) for (k, v), see in zip((prefix, prompt), seen, strict=True)]
    got = attend(queries, sources)

    copied = [
        jnp.concatenate([jnp.broadcast_to(a, (prompts, *a.shape)), b], 2)[:, None].repeat(samples, 1).swapaxes(2, 3)
        for a, b in zip(prefix, prompt, strict=True)
    ]
    mask = jnp.concatenate([jnp.ones((prompts, 5), bool), visible], 1)[:, None].repeat(samples, 1)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (queries, *copied)]
    expected = jax.nn.dot_product_attention(*flat, mask=mask.reshape(-1, 1, 1, 11))
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2e-5, atol=2e-6)


def test_a_query_that_sees_nothing_is_finite():
    source = Source(jnp.ones((1, 4, 2)), jnp.ones((1, 2, 4)), jnp.zeros((1, 2), bool))
    assert np.all(np.isfinite(attend(jnp.ones((1, 1, 4)), [source])))


def tree_of_keys(prompts, samples, length, kv_heads, heads, width, prompt_length=40, prefix_length=5):
    """Queries and keys of completions, and which prompt tokens are real: pads left, right and in the middle."""
    shapes = {
        "queries": (prompts, samples, length, heads, width),
        "prefix": (kv_heads, prefix_length, width),
        "prompt": (prompts, kv_heads, prompt_length, width),
        "own": (prompts, samples, kv_heads, length, width),
    }
    keys = jax.random.split(jax.random.key(1), 2 * len(shapes))
    arrays = {
        name: jax.random.normal(keys[i], shape)
        if name == "queries"
        else (jax.random.normal(keys[i], shape).mT, jax.random.normal(keys[i + len(shapes)], shape))
        for i, (name, shape) in enumerate(shapes.items())
    }
    real = np.ones((prompts, prompt_length), bool)
    real[0, :9] = real[-1, 30:] = real[-1, 3] = False
    return arrays, jnp.asarray(real)


def completions_attend(arrays, real, attend_sources):
    length = arrays["queries"].shape[2]
    prefix, prompt, own = (Source(*arrays[name]) for name in ("prefix", "prompt", "own"))
    causal = jnp.tril(jnp.ones((length, length), bool))
    nothing = Source(prefix.keys[..., :0], prefix.values[..., :0, :])
    sources = [nothing, prefix, prompt._replace(visible=real[:, None, None]), own._replace(visible=causal)]
    return attend_sources(arrays["queries"], sources)


def prompts_attend(arrays, real, attend_sources):
    """Prompts as queries: here the pads are among the queries. Results at pads, which are unspecified, become zero."""
    prefix, prompt = Source(*arrays["prefix"]), Source(*arrays["prompt"])
    queries = arrays["queries"][:, 0, : real.shape[-1]]
    causal = jnp.tril(jnp.ones((real.shape[-1], real.shape[-1]), bool))
    context = attend_sources(queries, [prefix, prompt._replace(visible=causal & real[:, None])])
    return context * real[..., None]


@pytest.fixture
def kernel(request, monkeypatch):
    monkeypatch.setattr(attention, "fused_kernel", lambda *_: INTERPRETED[request.param])
    return request.param


# Not a multiple of the block: 150 queries and 195 keys fill two blocks of 128 each, partly.
@pytest.mark.parametrize(
    ("kernel", "who"),
    [
        ("cudnn", completions_attend),
        ("cudnn", prompts_attend),
        ("splash", completions_attend),
        pytest.param("splash", prompts_attend, marks=pytest.mark.slow),
    ],
    indirect=["kernel"],
)
def test_kernels_equal_the_reference_in_value_and_gradient(kernel, who, one_device):
    arrays, real = tree_of_keys(prompts=2, samples=2, length=150, kv_heads=2, heads=4, width=16)
    direction = jax.random.normal(jax.random.key(2), jax.eval_shape(lambda: who(arrays, real, attend)).shape)

    def loss(arrays, real, attend_sources):
        context = who(arrays, real, attend_sources)
        return (context * direction).sum(), context

    fused = jax.jit(
        jax.value_and_grad(
            functools.partial(loss, attend_sources=lambda *x: attend_causally(*x, one_device)), has_aux=True
        )
    )
    (_, expected), expected_gradient = jax.value_and_grad(loss, has_aux=True)(arrays, real, attend)
    (_, got), gradient = fused(arrays, real)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    # What stands in a pad changes no bit, and no gradient reaches it.
    keys, values = arrays["prompt"]
    pads = ~real[:, None]
    assert all(not np.any(np.where(pads[..., None], x, 0)) for x in (gradient["prompt"][0].mT, gradient["prompt"][1]))
    other = arrays | {"prompt": (jnp.where(pads[..., None, :], 1e4, keys), jnp.where(pads[..., None], -1e4, values))}
    (_, again), gradient_again = fused(other, real)
    np.testing.assert_array_equal(again, got)
    jax.tree.map(np.testing.assert_array_equal, gradient_again, gradient)


@pytest.mark.parametrize("kernel", ["cudnn", pytest.param("splash", marks=pytest.mark.slow)], indirect=True)
def test_each_device_computes_its_own_rows_and_heads(kernel):
    mesh = make_mesh(MeshShape(2, 2, 2))
    arrays, real = tree_of_keys(prompts=8, samples=1, length=130, kv_heads=2, heads=4, width=8)
    prefix = arrays.pop("prefix")
    arrays = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), arrays)
    real = real.reshape(4, 2, -1)

    def loss(arrays, prefix, real, mesh):
        def row(arrays, real):
            attend_sources = attend if mesh is None else lambda *x: attend_causally(*x, mesh)
            return completions_attend(arrays | {"prefix": prefix}, real, attend_sources)

        contexts = jax.vmap(row, spmd_axis_name=None if mesh is None else ("data", "fsdp"))(arrays, real)
        return (contexts**2).sum()

    def placed(x, heads):
        spec = [("data", "fsdp"), *[None] * (x.ndim - 1)]
        spec[heads] = "tensor"
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    split = {
        name: jax.tree.map(functools.partial(placed, heads=-2 if name == "queries" else -3), x)
        for name, x in arrays.items()
    }
    compiled = jax.jit(jax.value_and_grad(functools.partial(loss, mesh=mesh))).lower(split, prefix, real).compile()
    assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled.as_text())
    got = compiled(split, prefix, real)
    expected = jax.value_and_grad(functools.partial(loss, mesh=None))(arrays, prefix, real)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, expected)


def mesh_of(platform, capability="8.0", tensor=1):
    client = types.SimpleNamespace(platform_version=platform)
    kind = "tpu" if platform == "tpu" else "gpu"
    device = types.SimpleNamespace(platform=kind, client=client, compute_capability=capability)
    return types.SimpleNamespace(
        shape={"data": 1, "fsdp": 1, "tensor": tensor}, devices=np.full((1, 1, tensor), device)
    )


@pytest.mark.parametrize(
    ("mesh", "length", "width", "dtype", "expected"),
    [
        (mesh_of("tpu"), 128, 64, jnp.bfloat16, splash),
        (mesh_of("tpu", tensor=2), 1000, 256, jnp.bfloat16, splash),
        (mesh_of("tpu", tensor=4), 1000, 256, jnp.bfloat16, None),  # two key heads
        (mesh_of("tpu"), 127, 64, jnp.bfloat16, None),
        (mesh_of("tpu"), 1, 64, jnp.bfloat16, None),
        (mesh_of("tpu"), 128, 80, jnp.bfloat16, None),
        (mesh_of("tpu"), 128, 64, jnp.float32, None),
        (mesh_of("cuda 13010"), 128, 80, jnp.bfloat16, cudnn),
        (mesh_of("cuda 13010"), 128, 256, jnp.bfloat16, None),
        (mesh_of("cuda 13010", "9.0"), 128, 256, jnp.bfloat16, cudnn),
        (mesh_of("cuda 13010", "10.3"), 128, 264, jnp.bfloat16, None),
        (mesh_of("cuda 13010"), 128, 64, jnp.float32, None),
        (mesh_of("rocm 70000", "gfx942"), 128, 64, jnp.bfloat16, None),
    ],
)
def test_which_kernel_is_taken(mesh, length, width, dtype, expected):
    rule = inspect.unwrap(fused_kernel)
    assert rule(mesh, jax.ShapeDtypeStruct((3, length, 4, width), dtype), 2) is expected


def test_no_kernel_is_taken_on_cpu(one_device):
    keys, values = jnp.ones((2, 64, 128), jnp.bfloat16), jnp.ones((2, 128, 64), jnp.bfloat16)
    sources = [Source(keys, values, jnp.tril(jnp.ones((128, 128), bool)))]
    queries = jnp.ones((128, 4, 64), jnp.bfloat16)
    assert fused_kernel(one_device, queries, 2) is None
    lowered = [
        jax.jit(lambda q, s, f=f: f(q, s)).lower(queries, sources).as_text()
        for f in (attend, lambda *x: attend_causally(*x, one_device), attend_causally)
    ]
    assert len(set(lowered)) == 1
    with pytest.raises(ValueError, match="the last source has 128 keys, some hidden: expected 100, each seen causally"):
        attend_causally(queries[:100], sources, one_device)
    with pytest.raises(ValueError, match="the last source has 128 keys, all visible: expected 128"):
        attend_causally(queries, [Source(keys, values)], one_device)


def shapes(rows, batch, length, total, heads, kv_heads, width, mesh=None):
    def shape(*sizes, dtype=jnp.bfloat16, axes=()):
        placed = None if mesh is None else NamedSharding(mesh, PartitionSpec(("data", "fsdp"), *axes))
        return jax.ShapeDtypeStruct((rows, *sizes), dtype, sharding=placed)

    return (
        shape(batch, length, heads, width, axes=(None, None, "tensor")),
        shape(batch, kv_heads, width, total, axes=(None, "tensor")),
        shape(batch, kv_heads, total, width, axes=(None, "tensor")),
        shape(batch, total, dtype=bool),
    )


def gradient_of(attend_row):
    def loss(queries, keys, values, real):
        contexts = jax.vmap(attend_row, spmd_axis_name=("data", "fsdp"))(queries, keys, values, real)
        return (contexts.astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))


def test_cuda_gets_cudnn_with_local_shapes_and_no_mask(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo

    # JAX asks for the installed version of cuDNN while it traces.
    monkeypatch.setattr(
        fused_attention_stablehlo, "cuda_versions", types.SimpleNamespace(cudnn_get_version=lambda: 91000)
    )
    arguments = shapes(rows=4, batch=8, length=1024, total=1280, heads=32, kv_heads=8, width=128)
    gradient = gradient_of(sharded(cudnn, make_mesh(MeshShape(2, 2, 2))))
    text = gradient.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"custom_call @(__cudnn\S+)\(.* : \((tensor<\S+>), (tensor<\S+>),", text)
    local = "tensor<8x1280x16x128xbf16>", "tensor<8x1280x4x128xbf16>"
    assert sorted(calls) == [("__cudnn$fmhaSoftmax", *local), ("__cudnn$fmhaSoftmaxBackward", *local)]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
@pytest.mark.parametrize("width", [64, 128, 256])
def test_on_tpu_no_score_is_stored_and_nothing_is_gathered(width, monkeypatch):
    """Compiled for four chips of which none need exist: 4 prompts of 256 tokens by 8 completions of 1,024 a row."""
    from jax.experimental import topologies

    jax.devices()  # reads the flags for CPU, at which libtpu would end the process
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    mesh = make_mesh(MeshShape(2, 1, 2), topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices)
    batch, length, total, heads = 32, 1024, 1280, 32
    arguments = shapes(2, batch, length, total, heads, kv_heads=8, width=width, mesh=mesh)

    def reference(queries, keys, values, real):
        visible = jnp.tril(jnp.ones((length, total), bool), total - length) & real[:, None]
        return attend(queries, [Source(keys, values, visible)])

    temporary = {}
    for name, attend_row in (("kernel", sharded(splash, mesh)), ("reference", reference)):
        compiled = gradient_of(attend_row).lower(*arguments).compile()
        analysis = compiled.memory_analysis()
        temporary[name] = (
            analysis.peak_memory_in_bytes - analysis.argument_size_in_bytes - analysis.output_size_in_bytes
        )
        calls = compiled.as_text().count('custom_call_target="tpu_custom_call"')
        assert calls == (3 if name == "kernel" else 0)  # forward, dq, dk and dv
        assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled.as_text())
    print(width, {name: f"{size / 2**20:.0f} MiB" for name, size in temporary.items()})
    scores = batch * heads // 2 * length * total * 4
    assert temporary["kernel"] < scores / 2 < 2 * scores < temporary["reference"]
