"""The decoder of Llama and Qwen in Flax NNX, used functionally.

The modules describe each weight once: shape, initializer, logical axes. `decoder(config, params)` puts a
parameter pytree into them for the length of a trace; nothing else holds state.

Layers see a flat list of tokens. Which tokens meet, and what they remember of earlier ones, is the caller's business:
see `Meeting`.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from rlvr_jax.models import gated_delta
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.linear import linear, swiglu
from rlvr_jax.models.norm import rms_norm
from rlvr_jax.models.rotary import Rotation, rotate

Params = dict[str, Any]
Tokens = Float[Array, "tokens hidden"]


class PerKind(NamedTuple):
    """Something for the layers of full attention, and for those of a Gated DeltaNet (Qwen3.5)."""

    attention: Any = None
    delta: Any = None


class Meeting(NamedTuple):
    """How the tokens of a flat list meet, in either kind of layer.

    The first argument of both is what the scan hands to this layer, the second result an output that it collects.
    """

    attend: Callable[[Any, Array, Array, Array], tuple[Array, Any]]
    """(..., queries, keys, values, each `[tokens, heads, head_dim]`) to (context `[tokens, H * head_dim]`, output)."""
    mix: Callable[[Any, gated_delta.Weights, gated_delta.Projected], tuple[Array, Any]]
    """(..., weights, projected tokens) to (what their heads read `[tokens, H, V]`, output)."""


_NO_INPUTS = PerKind()

Remat = Literal["none", "dots", "full"]
REMAT: Mapping[str, Callable | None] = MappingProxyType(
    {
        "none": None,
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
)
"""What a layer keeps for its backward pass: all, the products with weights, or its input alone."""


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param:
    value = 0.02 * jax.random.normal(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, logical_axes=axes)


def _bias(size: int, axis: str) -> nnx.Param:
    return nnx.Param(jnp.zeros(size, jnp.float32), logical_axes=(axis,))


def _linear(x: Tokens, weight: nnx.Param) -> Array:
    return linear(x, weight.get_value())


class RMSNorm(nnx.Module):
    """Root-mean-square norm (arXiv 1910.07467), computed in float32; `zero_centred` scales by 1 + weight."""

    def __init__(self, size: int, eps: float, axis: str = "embed", zero_centred: bool = False):
        self.scale = nnx.Param(jnp.full(size, 0.0 if zero_centred else 1.0, jnp.float32), logical_axes=(axis,))
        self.eps, self.zero_centred = eps, zero_centred

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        scale = 1 + self.scale[...] if self.zero_centred else self.scale[...]
        return rms_norm(x, scale, self.eps)


class Attention(nnx.Module):
    """Grouped-query attention around the meeting of its tokens; in Qwen3.5 each head's context is gated."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        # A head's gate is projected right behind its query, as checkpoints have it.
        query_width = 2 * width if config.output_gate else width
        self.head_dim, self.kv_heads, self.output_gate = config.head_dim, config.num_kv_heads, config.output_gate
        self.query = _weight(rngs, (query_width, config.hidden_size), ("heads", "embed"))
        self.key = _weight(rngs, (kv_width, config.hidden_size), ("kv_heads", "embed"))
        self.value = _weight(rngs, (kv_width, config.hidden_size), ("kv_heads", "embed"))
        self.output = _weight(rngs, (config.hidden_size, width), ("embed", "heads"))
        if config.attention_bias:
            self.query_bias, self.key_bias = _bias(query_width, "heads"), _bias(kv_width, "kv_heads")
            self.value_bias = _bias(kv_width, "kv_heads")
        if config.output_bias:
            self.output_bias = _bias(config.hidden_size, "embed")
        if config.query_key_norm:
            norm = functools.partial(RMSNorm, config.head_dim, config.rms_norm_eps, "head_dim")
            self.query_norm, self.key_norm = norm(config.zero_centred_norms), norm(config.zero_centred_norms)

    def _heads(self, x: Tokens) -> tuple[Array, Array, Array]:
        """Queries (each with its gate, if there are gates), keys and values `[tokens, heads, size]`."""

        def project(name: str) -> Float[Array, "tokens width"]:
            bias = getattr(self, f"{name}_bias", None)
            product = _linear(x, getattr(self, name))
            return product if bias is None else product + bias[...]

        if hasattr(self, "all"):  # fused, see `decoding`
            together, size = project("all").reshape(len(x), self.kv_heads, -1), self.head_dim
            parts = (together[..., : -2 * size], together[..., -2 * size : -size], together[..., -size:])
        else:
            parts = (project("query"), project("key"), project("value"))
        sizes = (self.head_dim * (2 if self.output_gate else 1), self.head_dim, self.head_dim)
        queries, keys, values = (part.reshape(len(x), -1, size) for part, size in zip(parts, sizes, strict=True))
        return queries, keys, values

    def __call__(self, x: Tokens, rotation: Rotation, attend: Callable) -> tuple[Tokens, Any]:
        queries, keys, values = self._heads(x)
        queries, gate = jnp.split(queries, 2, -1) if self.output_gate else (queries, None)
        if hasattr(self, "query_norm"):
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        context, output = attend(rotate(queries, rotation), rotate(keys, rotation), values)
        if gate is not None:
            context *= jax.nn.sigmoid(gate).reshape(context.shape)
        context = _linear(context, self.output)
        return (context + self.output_bias[...] if hasattr(self, "output_bias") else context), output


class GatedDeltaNet(nnx.Module):
    """The weights of `gated_delta` around the meeting of its tokens."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        delta, hidden = config.delta, config.hidden_size
        width = delta.value_heads * delta.value_dim
        channels = 2 * delta.key_heads * delta.key_dim + width
        self.channels = _weight(rngs, (channels, hidden), ("heads", "embed"))
        self.gate = _weight(rngs, (width, hidden), ("heads", "embed"))
        self.write = _weight(rngs, (delta.value_heads, hidden), ("heads", "embed"))
        self.decay = _weight(rngs, (delta.value_heads, hidden), ("heads", "embed"))
        # As transformers starts them: decays of all speeds, and taps large enough to pass something on.
        taps = jax.random.uniform(rngs.params(), (channels, 1, delta.taps), minval=-1.0) * delta.taps**-0.5
        self.convolution = nnx.Param(taps, logical_axes=("heads", None, None))
        rates = jax.random.uniform(rngs.params(), (delta.value_heads,), minval=0.01, maxval=16.0)
        self.log_rate = nnx.Param(jnp.log(rates), logical_axes=("heads",))
        self.decay_bias = nnx.Param(jnp.ones(delta.value_heads, jnp.float32), logical_axes=("heads",))
        self.norm = RMSNorm(delta.value_dim, config.rms_norm_eps, "head_dim")
        self.output = _weight(rngs, (hidden, width), ("embed", "heads"))

    def __call__(self, x: Tokens, rotation: Rotation, mix: Callable) -> tuple[Tokens, Any]:
        weights = gated_delta.Weights(
            channels=self.channels[...],
            gate=self.gate[...],
            write=self.write[...],
            decay=self.decay[...],
            convolution=self.convolution[...][:, 0],
            log_rate=self.log_rate[...],
            decay_bias=self.decay_bias[...],
            norm=self.norm.scale[...],
            output=self.output[...],
        )
        projected = gated_delta.project(weights, x)
        mixed, output = mix(weights, projected)
        return gated_delta.read_out(weights, mixed, projected.gate, norm_eps=self.norm.eps), output


class MLP(nnx.Module):
    """The gated feed-forward of Llama (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.gate = _weight(rngs, (config.intermediate_size, config.hidden_size), ("mlp", "embed"))
        self.up = _weight(rngs, (config.intermediate_size, config.hidden_size), ("mlp", "embed"))
        self.down = _weight(rngs, (config.hidden_size, config.intermediate_size), ("embed", "mlp"))
        self.groups = math.gcd(config.intermediate_size, config.num_kv_heads)

    def __call__(self, x: Tokens) -> Tokens:
        if hasattr(self, "gate_up"):  # fused, see `decoding`
            together = _linear(x, self.gate_up).reshape(len(x), self.groups, 2, -1)
            gate, up = (together[:, :, i].reshape(len(x), -1) for i in (0, 1))
        else:
            gate, up = _linear(x, self.gate), _linear(x, self.up)
        return _linear(swiglu(gate, up), self.down)


class Layer(nnx.Module):
    """Pre-norm transformer layer over a flat list of tokens."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, mixer: type[Attention] | type[GatedDeltaNet] = Attention):
        norm = functools.partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        self.attention_norm = norm(zero_centred=config.zero_centred_norms)
        self.attention = mixer(config, rngs)
        self.mlp_norm = norm(zero_centred=config.zero_centred_norms)
        self.mlp = MLP(config, rngs)

    def __call__(self, x: Tokens, rotation: Rotation, meet: Callable) -> tuple[Tokens, Any]:
        context, output = self.attention(self.attention_norm(x), rotation, meet)
        x = x + context
        return x + self.mlp(self.mlp_norm(x)), output


class Decoder(nnx.Module):
    """Token ids to hidden states; `unembedding` is the head `[vocab, hidden]`."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.embedding = _weight(rngs, (config.vocab_size, config.hidden_size), ("vocab", "embed"))
        self.layers = nnx.vmap(lambda r: Layer(config, r))(rngs.split(config.num_attention_layers))
        if config.delta:
            others = rngs.split(config.num_layers - config.num_attention_layers)
            self.delta_layers = nnx.vmap(lambda r: Layer(config, r, GatedDeltaNet))(others)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, zero_centred=config.zero_centred_norms)
        if not config.tie_word_embeddings:
            self.head = _weight(rngs, (config.vocab_size, config.hidden_size), ("vocab", "embed"))
        self.tied = config.tie_word_embeddings
        self.blocks = config.num_attention_layers

    def embed(self, tokens: Int[Array, " tokens"]) -> Tokens:
        return self.embedding[...][tokens]

    def run_layers(
        self,
        x: Tokens,
        rotation: Rotation,
        meeting: Meeting,
        per_layer: PerKind = _NO_INPUTS,
        *,
        remat: Remat = "none",
    ) -> tuple[Tokens, PerKind]:
        """All layers under one scan over their stacked weights; blocks of both kinds scan the delta layers within.

        `per_layer` holds pytrees with a leading axis of that kind's layers; `meeting` gets each layer's slice and
        returns an output that comes back stacked. `remat`: a key of `REMAT`.
        """
        policy = REMAT[remat]

        def step_over(layers: Layer, meet: Callable) -> tuple[Callable, PyTree]:
            graphdef, stacked = nnx.split(layers)

            def step(x: Array, inputs: tuple) -> tuple[Array, Any]:
                weights, extra = inputs
                return nnx.merge(graphdef, weights)(x, rotation, functools.partial(meet, extra))

            return (jax.checkpoint(step, policy=policy) if policy else step), stacked

        attention_step, stacked = step_over(self.layers, meeting.attend)
        attention_inputs = (stacked, per_layer.attention)
        if not hasattr(self, "delta_layers"):
            x, outputs = jax.lax.scan(attention_step, x, attention_inputs)
            return self.norm(x), PerKind(outputs)

        delta_step, stacked = step_over(self.delta_layers, meeting.mix)

        def block(x: Array, inputs: PerKind) -> tuple[Array, PerKind]:
            x, delta_outputs = jax.lax.scan(delta_step, x, inputs.delta)
            x, attention_outputs = attention_step(x, inputs.attention)
            return x, PerKind(attention_outputs, delta_outputs)

        by_block = jax.tree.map(lambda leaf: leaf.reshape(self.blocks, -1, *leaf.shape[1:]), (stacked, per_layer.delta))
        x, outputs = jax.lax.scan(block, x, PerKind(attention_inputs, by_block))
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs.delta)
        return self.norm(x), outputs._replace(delta=flat)

    @property
    def unembedding(self) -> Float[Array, "vocab hidden"]:
        return self.embedding[...] if self.tied else self.head[...]


@functools.cache
def _abstract(config: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))


_ALWAYS_FLOAT32 = ("scale", "log_rate", "decay_bias")


def decoder(config: ModelConfig, params: Params) -> Decoder:
    """The modules with these parameters in them, in the config's compute type but for norms and decay rates."""
    dtype = jnp.dtype(config.compute_dtype)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: x if path[-1].key in _ALWAYS_FLOAT32 else x.astype(dtype), params
    )
    return nnx.merge(_abstract(config)[0], params)


def abstract_params(config: ModelConfig) -> Params:
    """Shape and dtype of every parameter; the weights of all layers are stacked on a leading axis."""
    return nnx.to_pure_dict(_abstract(config)[1])


def logical_axes(config: ModelConfig) -> Params:
    """Logical axes of every parameter, in the structure of `abstract_params`."""
    state = _abstract(config)[1]

    def axes(path: tuple, variable: nnx.Variable) -> tuple[str | None, ...]:
        stacked = path[0].key in ("layers", "delta_layers")
        return (("layers",) if stacked else ()) + variable.get_metadata("logical_axes")

    flat, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    params_structure = jax.tree.structure(abstract_params(config))
    assert structure.num_leaves == params_structure.num_leaves
    return jax.tree.unflatten(params_structure, [axes(path, variable) for path, variable in flat])


def init_params(config: ModelConfig, seed: int) -> Params:
    """Random parameters, normal with standard deviation 0.02 and unit norms."""
    return nnx.to_pure_dict(nnx.split(Decoder(config, nnx.Rngs(seed)))[1])
