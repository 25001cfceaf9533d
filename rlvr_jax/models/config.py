"""What a decoder is, read from a Hugging Face `config.json`. What the port does not support is refused by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """The frequency scaling of Llama 3.1 and later (`rope_type` "llama3"); see `rotary.inverse_frequencies`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a Llama or Qwen decoder; hashable, so it is a static argument of jitted functions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    """Biases on the query, key and value projections (Qwen 2)."""
    output_bias: bool = False
    """A bias on the attention's output projection."""
    query_key_norm: bool = False
    """RMS norm of each head's queries and keys before they are rotated (Qwen 3)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matrix products. Norms, rotations, softmax and logits are float32 either way."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"num_attention_heads is {self.num_heads}: "
                f"accepted is a multiple of num_key_value_heads ({self.num_kv_heads})"
            )


_REQUIRED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "qwen2", "qwen3"),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "pretraining_tp": (1,),
    "quantization_config": (None,),
}


def config_from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """The decoder that a `config.json` describes.

    Reads both `rope_scaling` with `rope_theta` and the `rope_parameters` of transformers 5. Raises UserError
    that names the first field which is missing or has an unsupported value.
    """
    for name, accepted in _REQUIRED_VALUES.items():
        value = fields.get(name, accepted[0] if name != "model_type" else None)
        if value not in accepted:
            raise UserError(f"config.json: {name} is {value!r}, this port accepts {' or '.join(map(repr, accepted))}")

    def required(name: str) -> Any:
        if fields.get(name) is None:
            raise UserError(f"config.json: {name} is missing")
        return fields[name]

    for kind in fields.get("layer_types") or ():
        if kind != "full_attention":
            raise UserError(f"config.json: layer_types has {kind!r}, this port accepts 'full_attention'")
    family = fields["model_type"]
    heads = required("num_attention_heads")
    hidden = required("hidden_size")
    rope = dict(fields.get("rope_scaling") or {}) | dict(fields.get("rope_parameters") or {})
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"config.json: partial_rotary_factor is {rope['partial_rotary_factor']}, this port accepts 1.0")
    # Qwen 2 has biases on query, key and value without saying so; the others say, and then mean the output as well.
    stated_bias = bool(fields.get("attention_bias", False))
    return ModelConfig(
        vocab_size=required("vocab_size"),
        hidden_size=hidden,
        intermediate_size=required("intermediate_size"),
        num_layers=required("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=required("head_dim") if family == "qwen3" else fields.get("head_dim") or hidden // heads,
        rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        rms_norm_eps=float(required("rms_norm_eps")),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope),
        attention_bias=family == "qwen2" or stated_bias,
        output_bias=family != "qwen2" and stated_bias,
        query_key_norm=family == "qwen3",
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"config.json: rope_type is {kind!r}, this port accepts 'default' or 'llama3'")
    names = [field.name for field in dataclasses.fields(RopeScaling)]
    missing = [name for name in names if name not in rope]
    if missing:
        raise UserError(f"config.json: rope_type is 'llama3' but {missing[0]} is missing")
    return RopeScaling(**{name: rope[name] for name in names})
