"""The decoder of Llama and Qwen in Flax NNX, used functionally.

The modules describe each weight once: shape, initializer, logical axes. `decoder(config, params)` puts a
parameter pytree into them for the length of a trace; nothing else holds state.
Weights are stored `[out, in]`, as checkpoints store them: on CPU the product with few rows (decoding) is faster
so, with many rows it makes no difference.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.rotary import Rotation, rotate

Params = dict[str, Any]
Tokens = Float[Array, "tokens hidden"]
Attend = Callable[[Any, Array, Array, Array], tuple[Array, Any]]
"""(what the scan hands to this layer, queries, keys, values) to (context `[tokens, H * head_dim]`, output)."""


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
    value = 0.02 * jax.random.normal(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, logical_axes=axes)


def _bias(size: int, axis: str) -> nnx.Param:
    return nnx.Param(jnp.zeros(size, jnp.float32), logical_axes=(axis,))


def linear(
    x: Float[Array, "tokens in"], weight: Float[Array, "out in"], dtype: jnp.dtype | None = None
) -> Float[Array, "tokens out"]:
    """`x @ weight.T`, for few tokens on CPU computed as `(weight @ x.T).T`; `dtype`: of the result, default that of x.

    XLA's CPU matrix product is up to twice as fast with the few columns on the right; the barriers keep its
    simplifier from turning the product back.
    """

    def few_tokens(x: Array, weight: Array) -> Array:
        columns = jax.lax.optimization_barrier(x.T)
        product = jnp.matmul(weight, columns, preferred_element_type=dtype)
        return jax.lax.optimization_barrier(product).T

    def any_tokens(x: Array, weight: Array) -> Array:
        return jnp.einsum("ni,oi->no", x, weight, preferred_element_type=dtype)

    if x.shape[0] > 32:
        return any_tokens(x, weight)
    return jax.lax.platform_dependent(x, weight, cpu=few_tokens, default=any_tokens)


def _linear(x: Tokens, weight: nnx.Param) -> Array:
    return linear(x, weight[...])


@jax.custom_vjp
def _swiglu(gate: Array, up: Array) -> Array:
    """`silu(gate) * up`, with its gradients computed once: XLA on CPU would compute them anew for each product."""
    return jax.nn.silu(gate) * up


def _swiglu_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    gate, up = residuals
    sigmoid = jax.nn.sigmoid(gate)
    gradients = cotangent * up * sigmoid * (1 + gate * (1 - sigmoid)), cotangent * gate * sigmoid
    return jax.lax.platform_dependent(gradients, cpu=jax.lax.optimization_barrier, default=lambda x: x)


_swiglu.defvjp(lambda gate, up: (_swiglu(gate, up), (gate, up)), _swiglu_backward)


class RMSNorm(nnx.Module):
    """Root-mean-square norm (arXiv 1910.07467), computed in float32."""

    def __init__(self, size: int, eps: float, axis: str = "embed"):
        self.scale = nnx.Param(jnp.ones(size, jnp.float32), logical_axes=(axis,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + self.eps)
        return (normed * self.scale[...]).astype(x.dtype)


class Attention(nnx.Module):
    """Projections of grouped-query attention; who attends to what is the caller's business."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.query = _weight(rngs, (width, config.hidden_size), ("heads", "embed"))
        self.key = _weight(rngs, (kv_width, config.hidden_size), ("kv_heads", "embed"))
        self.value = _weight(rngs, (kv_width, config.hidden_size), ("kv_heads", "embed"))
        self.output = _weight(rngs, (config.hidden_size, width), ("embed", "heads"))
        if config.attention_bias:
            self.query_bias, self.key_bias = _bias(width, "heads"), _bias(kv_width, "kv_heads")
            self.value_bias = _bias(kv_width, "kv_heads")
        if config.output_bias:
            self.output_bias = _bias(config.hidden_size, "embed")
        if config.query_key_norm:
            self.query_norm = RMSNorm(config.head_dim, config.rms_norm_eps, "head_dim")
            self.key_norm = RMSNorm(config.head_dim, config.rms_norm_eps, "head_dim")

    def __call__(self, x: Tokens, rotation: Rotation, attend: Callable) -> tuple[Tokens, Any]:
        def project(x: Tokens, name: str) -> Float[Array, "tokens width"]:
            bias = getattr(self, f"{name}_bias", None)
            product = _linear(x, getattr(self, name))
            return product if bias is None else product + bias[...]

        queries, keys, values = (
            project(x, name).reshape(x.shape[0], -1, self.head_dim) for name in ("query", "key", "value")
        )
        if hasattr(self, "query_norm"):
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        context, output = attend(rotate(queries, rotation), rotate(keys, rotation), values)
        return project(context, "output"), output


class MLP(nnx.Module):
    """The gated feed-forward of Llama (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.gate = _weight(rngs, (config.intermediate_size, config.hidden_size), ("mlp", "embed"))
        self.up = _weight(rngs, (config.intermediate_size, config.hidden_size), ("mlp", "embed"))
        self.down = _weight(rngs, (config.hidden_size, config.intermediate_size), ("embed", "mlp"))

    def __call__(self, x: Tokens) -> Tokens:
        return _linear(_swiglu(_linear(x, self.gate), _linear(x, self.up)), self.down)


class Layer(nnx.Module):
    """Pre-norm transformer layer over a flat list of tokens."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, rngs)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config, rngs)

    def __call__(self, x: Tokens, rotation: Rotation, attend: Callable) -> tuple[Tokens, Any]:
        context, output = self.attention(self.attention_norm(x), rotation, attend)
        x = x + context
        return x + self.mlp(self.mlp_norm(x)), output


class Decoder(nnx.Module):
    """Token ids to hidden states; `unembedding` is the head `[vocab, hidden]`."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.embedding = _weight(rngs, (config.vocab_size, config.hidden_size), ("vocab", "embed"))
        self.layers = nnx.vmap(lambda r: Layer(config, r))(rngs.split(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = _weight(rngs, (config.vocab_size, config.hidden_size), ("vocab", "embed"))
        self.tied = config.tie_word_embeddings

    def embed(self, tokens: Int[Array, " tokens"]) -> Tokens:
        return self.embedding[...][tokens]

    def run_layers(
        self, x: Tokens, rotation: Rotation, attend: Attend, per_layer: PyTree = None, *, remat: bool = False
    ) -> tuple[Tokens, PyTree]:
        """All layers under one scan over their stacked weights.

        `per_layer` is a pytree with a leading layer axis; `attend` gets its slice and returns, beside the
        context, an output that comes back stacked. `remat` recomputes each layer in the backward pass, so
        that only its input is kept.
        """
        graphdef, stacked = nnx.split(self.layers)

        def step(x: Array, inputs: tuple) -> tuple[Array, Any]:
            weights, extra = inputs
            return nnx.merge(graphdef, weights)(x, rotation, functools.partial(attend, extra))

        x, outputs = jax.lax.scan(jax.checkpoint(step) if remat else step, x, (stacked, per_layer))
        return self.norm(x), outputs

    @property
    def unembedding(self) -> Float[Array, "vocab hidden"]:
        return self.embedding[...] if self.tied else self.head[...]


@functools.cache
def _abstract(config: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))


def decoder(config: ModelConfig, params: Params) -> Decoder:
    """The modules with these parameters in them, in the config's compute type but for the scales of norms."""
    dtype = jnp.dtype(config.compute_dtype)
    params = jax.tree_util.tree_map_with_path(lambda path, x: x if path[-1].key == "scale" else x.astype(dtype), params)
    return nnx.merge(_abstract(config)[0], params)


def abstract_params(config: ModelConfig) -> Params:
    """Shape and dtype of every parameter; the weights of all layers are stacked on a leading axis."""
    return nnx.to_pure_dict(_abstract(config)[1])


def logical_axes(config: ModelConfig) -> Params:
    """Logical axes of every parameter, in the structure of `abstract_params`."""
    state = _abstract(config)[1]

    def axes(path: tuple, variable: nnx.Variable) -> tuple[str, ...]:
        stacked = path[0].key == "layers"
        return (("layers",) if stacked else ()) + variable.get_metadata("logical_axes")

    flat, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    params_structure = jax.tree.structure(abstract_params(config))
    assert structure.num_leaves == params_structure.num_leaves
    return jax.tree.unflatten(params_structure, [axes(path, variable) for path, variable in flat])


def init_params(config: ModelConfig, seed: int) -> Params:
    """Random parameters, normal with standard deviation 0.02 and unit norms."""
    return nnx.to_pure_dict(nnx.split(Decoder(config, nnx.Rngs(seed)))[1])
