"""The layers written out one by one, with products that read the same tokens fused: the form for decoding.

A scan copies each layer's weights out of their stack before it uses them. Among thousands of tokens that is nothing;
for one token of each of 64 completions it is a quarter of the time on CPU. Here every layer's weights are arrays of
their own, made once before the loop over tokens.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, PyTree

from rlvr_jax.models.decoder import MLP, Attention, Decoder, Layer, Meeting, PerKind, Tokens
from rlvr_jax.models.linear import Int8Array
from rlvr_jax.models.rotary import Rotation

LayerWeights = tuple[Any, PyTree]
"""What `nnx.split` makes of a layer."""


def unstacked(tree: PyTree, layers: int) -> list[PyTree]:
    """What a scan over layers would get, for each layer."""
    return [jax.tree.map(operator.itemgetter(i), tree) for i in range(layers)]


def layers_apart(model: Decoder, *, int8: bool = False) -> PerKind:
    """Lists of `LayerWeights` of either kind; with `int8` attention and MLP weights have 8 bits, a scale a row."""

    def each(layers: Layer) -> list[LayerWeights]:
        graphdef, stacked = nnx.split(layers)
        apart = [nnx.merge(graphdef, weights) for weights in unstacked(stacked, len(layers.mlp.gate))]
        for layer in apart:
            _fuse(layer)
            if int8:
                _quantize(layer)
        return [nnx.split(layer) for layer in apart]

    return PerKind(each(model.layers), each(model.delta_layers) if hasattr(model, "delta_layers") else [])


def _fuse(layer: Layer) -> None:
    """Makes one product of those that read the same tokens."""

    def joined(module: nnx.Module, names: Sequence[str], groups: int) -> nnx.Param:
        # Group by group of their outputs: what splits the weights over devices then leaves each group whole.
        parts = [getattr(module, name)[...] for name in names]
        for name in names:
            delattr(module, name)
        together = jnp.concatenate([part.reshape(groups, -1, *part.shape[1:]) for part in parts], 1)
        return nnx.Param(together.reshape(-1, *together.shape[2:]))

    attention, mlp = layer.attention, layer.mlp
    mlp.gate_up = joined(mlp, ("gate", "up"), mlp.groups)
    if isinstance(attention, Attention):
        names = ("query", "key", "value")
        attention.all = joined(attention, names, attention.kv_heads)
        if hasattr(attention, "query_bias"):
            attention.all_bias = joined(attention, [f"{name}_bias" for name in names], attention.kv_heads)


def _quantize(layer: Layer) -> None:
    for part in (layer.attention, layer.mlp):
        if isinstance(part, (Attention, MLP)):
            for name, weight in list(vars(part).items()):
                if isinstance(weight, nnx.Param) and weight.ndim == 2:
                    setattr(part, name, nnx.Param(Int8Array.of(weight[...])))


def run_layers_apart(
    layers: PerKind, x: Tokens, rotation: Rotation, meeting: Meeting, per_layer: PerKind
) -> tuple[Tokens, PerKind]:
    """`Decoder.run_layers` up to the last norm, with lists in place of stacked arrays."""

    def compiled_once(meet: Callable) -> Callable:
        @functools.partial(jax.jit, static_argnums=0)
        def run(graphdef: Any, weights: PyTree, x: Array, extra: Any) -> tuple[Array, Any]:
            with set_xla_metadata(inlineable=None):  # the calls within it are no layers
                return nnx.merge(graphdef, weights)(x, rotation, functools.partial(meet, extra))

        def call(layer: LayerWeights, x: Array, extra: Any) -> tuple[Array, Any]:
            inlined = functools.partial(run, layer[0])

            def whole(*arguments: Any) -> tuple[Array, Any]:
                # Thirty layers in one computation take XLA's CPU compiler three times as long, for slower code.
                with set_xla_metadata(inlineable="false"):
                    return inlined(*arguments)

            return jax.lax.platform_dependent(layer[1], x, extra, cpu=whole, default=inlined)

        return call

    attention, delta = compiled_once(meeting.attend), compiled_once(meeting.mix)
    per_block = len(layers.delta) // len(layers.attention)
    outputs = PerKind([], [])
    for i, layer in enumerate(layers.attention):
        for j in range(i * per_block, (i + 1) * per_block):
            x, output = delta(layers.delta[j], x, per_layer.delta[j])
            outputs.delta.append(output)
        x, output = attention(layer, x, per_layer.attention[i])
        outputs.attention.append(output)
    return x, outputs
