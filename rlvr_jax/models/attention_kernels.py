"""Fused attention for long queries on accelerators: no score is stored, forward or backward.

Both kernels are well kept elsewhere: splash attention in JAX for TPU, cuDNN's through `jax.nn` for CUDA. Neither can
merge sources: the gradient of their log-sum-exp is refused (splash) or silently dropped (cuDNN). So the shared keys
are copied to each sequence for the call. The copies hold `(S - T) * K * head_dim` elements a sequence for keys and
again for values, and live as long as the layer's other residuals; with rematerialisation, for one layer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.sharding import partition_spec

MINIMUM_LENGTH = 128
"""Shorter queries take the XLA path: their scores are no larger than what a kernel needs beside them."""

Kernel = Callable[[Array, Array, Array, Array], Array]


def fused_kernel(mesh: Mesh, queries: Float[Array, "*batch T H head_dim"], kv_heads: int) -> Kernel | None:
    """The kernel for queries of this shape and type on the mesh's devices; `None` where the XLA path is to be taken.

    A kernel is taken for bfloat16 queries with T >= 128, when the tensor axis of the mesh divides the K key heads and
    - on TPU, head_dim is a multiple of 64;
    - on CUDA, head_dim is a multiple of 8 and at most 128, or 256 from compute capability 9.0 on.
    """
    length, _, head_dim = queries.shape[-3:]
    if queries.dtype != jnp.bfloat16 or length < MINIMUM_LENGTH or kv_heads % mesh.shape["tensor"]:
        return None
    device = mesh.devices.flat[0]
    if device.platform == "tpu":
        return splash if head_dim % 64 == 0 else None
    if device.platform in ("gpu", "cuda") and "cuda" in device.client.platform_version:
        widest = 256 if float(device.compute_capability) >= 9 else 128
        return cudnn if head_dim % 8 == 0 and head_dim <= widest else None
    return None


def sharded(kernel: Kernel, mesh: Mesh) -> Kernel:
    """The kernel with heads split over the mesh's tensor axis.

    A compiler cannot partition a kernel, so it runs per device under `shard_map`. Rows of a batch are a `vmap` with
    `spmd_axis_name` around it, which leaves each device its own rows.
    """
    heads = partition_spec(("kv_heads",))[0]
    specs = P(None, None, heads, None), P(None, heads, None, None), P(None, heads, None, None), P()
    return jax.shard_map(kernel, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)


def splash(
    queries: Float[Array, "B T H head_dim"],
    keys: Float[Array, "B K head_dim S"],
    values: Float[Array, "B K S head_dim"],
    real: Bool[Array, "B S"],
    *,
    largest_block: int = 512,
    interpret: bool = False,
) -> Float[Array, "B T H head_dim"]:
    """Splash attention of T queries whose own keys are the last T of S; query t sees the real keys up to its own.

    Real tokens and pads are two segments, so a pad sees pads alone, itself at least. `interpret` runs on CPU.
    """
    # Here, because it takes a second or more that only those with a TPU need to spend.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    length, heads, head_dim = queries.shape[1:]
    total = keys.shape[-1]
    block, padded = _blocks(length, largest_block)
    key_block, padded_total = _blocks(total, largest_block)

    def pad(x: Array, axis: int, size: int) -> Array:
        return jnp.pad(x, [(0, size - x.shape[i] if i == axis else 0) for i in range(x.ndim)])

    mask = splash_attention_mask.CausalMask((padded, padded_total), offset=total - length)
    kernel = splash_attention_kernel.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=block,
            block_kv=key_block,
            block_q_dkv=block,
            block_kv_dkv=key_block,
            block_q_dq=block,
            block_kv_dq=key_block,
        ),
        interpret=interpret,
    )
    scaled = (queries.astype(jnp.float32) * head_dim**-0.5).astype(queries.dtype)
    segments = real.astype(jnp.int32)
    context = jax.vmap(kernel)(
        pad(scaled, 1, padded).swapaxes(1, 2),
        pad(keys.mT, 2, padded_total),
        pad(values, 2, padded_total),
        splash_attention_kernel.SegmentIds(
            pad(segments[:, total - length :], 1, padded), pad(segments, 1, padded_total)
        ),
    )
    return context.swapaxes(1, 2)[:, :length]


def _blocks(length: int, largest: int) -> tuple[int, int]:
    """Block size and padded length: as few blocks of at most `largest` as hold `length`, each a multiple of 128."""
    count = -(-length // largest)
    block = 128 * -(-length // (128 * count))
    return block, block * count


def cudnn(
    queries: Float[Array, "B T H head_dim"],
    keys: Float[Array, "B K head_dim S"],
    values: Float[Array, "B K S head_dim"],
    real: Bool[Array, "B S"],
    *,
    implementation: str = "cudnn",
) -> Float[Array, "B T H head_dim"]:
    """cuDNN's attention, with the visibility of `splash`.

    Any mask but the causal one would be stored as a bias `[B, 1, T, S]`, with a gradient as large. So pads are moved
    to the end, where the causal mask hides them from all real queries, and S - T empty queries stand before the real
    ones. That computes S * S / 2 scores a sequence instead of T * (S - T / 2): little more while T is most of S.
    """
    shared = real.shape[-1] - queries.shape[1]
    order = jnp.argsort(~real, axis=-1, stable=True)

    @jax.vmap
    def take(x: Array, places: Int[Array, " places"]) -> Array:
        # No index twice: the gradient, a scatter, then needs no atomic additions.
        return x.at[places].get(mode="promise_in_bounds", unique_indices=True)

    context = jax.nn.dot_product_attention(
        take(jnp.pad(queries, ((0, 0), (shared, 0), (0, 0), (0, 0))), order),
        take(jnp.moveaxis(keys, -1, 1), order),
        take(values.swapaxes(1, 2), order),
        is_causal=True,
        implementation=implementation,
    )
    return take(context, jnp.argsort(order, axis=-1)[:, shared:])
