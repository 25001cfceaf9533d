"""The layers written out one by one, with products that read the same tokens fused: the form for decoding.

A scan copies each layer's weights out of their stack before it uses them. Among thousands of tokens that is nothing;
for one token of each of 64 completions it is a quarter of the time on CPU. Here every layer's weights are arrays of
their own, made once before the loop over tokens.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, PyTree

from rlvr_jax.models.decoder import Decoder, Layer, Meeting, PerKind, Tokens
from rlvr_jax.models.rotary import Rotation

LayerWeights = tuple[Any, PyTree]
"""What `nnx.split` makes of a layer."""


def unstacked(tree: PyTree, layers: int) -> list[PyTree]:
    """What a scan over layers would get, for each layer."""
    return [jax.tree.map(operator.itemgetter(i), tree) for i in range(layers)]


def layers_apart(model: Decoder) -> PerKind:
    """Lists of `LayerWeights` of either kind."""

    def each(layers: Layer) -> list[LayerWeights]:
        graphdef, stacked = nnx.split(layers)
        apart = [nnx.merge(graphdef, weights) for weights in unstacked(stacked, len(layers.mlp.gate))]
        for layer in apart:
            layer.fuse()
        return [nnx.split(layer) for layer in apart]

    return PerKind(each(model.layers), each(model.delta_layers) if hasattr(model, "delta_layers") else [])


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
