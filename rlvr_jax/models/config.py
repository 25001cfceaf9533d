"""What a decoder is, read from a Hugging Face `config.json`. What the port does not support is refused by name."""

import dataclasses
from collections.abc import Callable, Mapping
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
class DeltaConfig:
    """Sizes of the Gated DeltaNet layers among those of full attention (Qwen3.5); see `gated_delta`."""

    block: int
    """Layers come in blocks of this many: all but the last of a block are Gated DeltaNet layers."""
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    """Of the short convolution: a token and those before it that it meets."""


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
    partial_rotary_factor: float = 1.0
    """Share of each head's channels that are rotated, the first ones."""
    zero_centred_norms: bool = False
    """RMS norms scale by 1 + weight (Qwen3.5)."""
    output_gate: bool = False
    """A sigmoid gate on the attention's context, projected along with the queries (Qwen3.5)."""
    delta: DeltaConfig | None = None
    """`None`: every layer is of full attention."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matrix products. Norms, rotations, softmax and logits are float32 either way."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"num_attention_heads is {self.num_heads}: "
                f"accepted is a multiple of num_key_value_heads ({self.num_kv_heads})"
            )
        if self.rotary_dim % 2:
            raise UserError(
                f"partial_rotary_factor is {self.partial_rotary_factor}: accepted is a share of head_dim "
                f"({self.head_dim}) that is an even number of channels"
            )
        if self.delta is None:
            return
        if self.num_layers % self.delta.block:
            raise UserError(
                f"num_hidden_layers is {self.num_layers}: accepted is a multiple of the {self.delta.block} layers that "
                "end with one of full attention"
            )
        if self.delta.value_heads % self.delta.key_heads:
            raise UserError(
                f"linear_num_value_heads is {self.delta.value_heads}: "
                f"accepted is a multiple of linear_num_key_heads ({self.delta.key_heads})"
            )

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def num_attention_layers(self) -> int:
        """Layers of full attention."""
        return self.num_layers // (self.delta.block if self.delta else 1)


_REQUIRED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "qwen2", "qwen3", "qwen3_5", "qwen3_5_text"),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "pretraining_tp": (1,),
    "quantization_config": (None,),
    "attn_output_gate": (True, None),
}


def text_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that describe the text decoder: in a multimodal `config.json` (Qwen3.5) those of `text_config`."""
    if "text_config" not in fields:
        return dict(fields)
    text = dict(fields["text_config"])
    # Of the whole model, whatever the part says; how the weights are stored as well.
    shared = ("tie_word_embeddings", "quantization_config", "eos_token_id", "bos_token_id", "dtype", "torch_dtype")
    text |= {name: fields[name] for name in shared if fields.get(name) is not None}
    return text


def config_from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """The decoder that a `config.json` describes.

    Reads both `rope_scaling` with `rope_theta` and the `rope_parameters` of transformers 5. Raises UserError
    that names the first field which is missing or has an unsupported value.
    """
    if fields.get("model_type") == "qwen3_5":
        fields = text_fields(fields)
    for name, accepted in _REQUIRED_VALUES.items():
        value = fields.get(name, accepted[0] if name != "model_type" else None)
        if value not in accepted:
            raise UserError(f"config.json: {name} is {value!r}, this port accepts {' or '.join(map(repr, accepted))}")

    def required(name: str) -> Any:
        if fields.get(name) is None:
            raise UserError(f"config.json: {name} is missing")
        return fields[name]

    family = fields["model_type"]
    hybrid = family in ("qwen3_5", "qwen3_5_text")
    other_kinds = [kind for kind in fields.get("layer_types") or () if kind != "full_attention"]
    if other_kinds and not hybrid:
        raise UserError(
            f"config.json: layer_types has {other_kinds[0]!r}, this port accepts 'full_attention' for {family}"
        )
    heads = required("num_attention_heads")
    hidden = required("hidden_size")
    rope = dict(fields.get("rope_scaling") or {}) | dict(fields.get("rope_parameters") or {})
    # Of the rope's other fields, mrope_section and mrope_interleaved place images; text has one position for all.
    rotated = float(rope.get("partial_rotary_factor") or fields.get("partial_rotary_factor") or (0.25 if hybrid else 1))
    if rotated != 1 and not hybrid:
        raise UserError(f"config.json: partial_rotary_factor is {rotated}, this port accepts 1.0 for {family}")
    # Qwen 2 has biases on query, key and value without saying so; the others say, and then mean the output as well.
    stated_bias = bool(fields.get("attention_bias", False))
    return ModelConfig(
        vocab_size=required("vocab_size"),
        hidden_size=hidden,
        intermediate_size=required("intermediate_size"),
        num_layers=required("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=required("head_dim") if family == "qwen3" or hybrid else fields.get("head_dim") or hidden // heads,
        rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        rms_norm_eps=float(required("rms_norm_eps")),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope),
        attention_bias=family == "qwen2" or stated_bias,
        output_bias=family != "qwen2" and stated_bias,
        query_key_norm=family == "qwen3" or hybrid,
        partial_rotary_factor=rotated,
        zero_centred_norms=hybrid,
        output_gate=hybrid,
        delta=_delta(fields, required) if hybrid else None,
    )


def _delta(fields: Mapping[str, Any], required: Callable[[str], Any]) -> DeltaConfig:
    layers = required("num_hidden_layers")
    kinds = fields.get("layer_types")
    block = fields.get("full_attention_interval") or 4
    if kinds and "full_attention" in kinds:
        block = kinds.index("full_attention") + 1
    pattern = (["linear_attention"] * (block - 1) + ["full_attention"]) * (layers // block)
    if block < 2 or (kinds is not None and list(kinds) != pattern):
        raise UserError(
            f"config.json: layer_types is {kinds!r}, this port accepts equal blocks of 'linear_attention' layers "
            "that end with one of 'full_attention'"
        )
    return DeltaConfig(
        block=block,
        key_heads=required("linear_num_key_heads"),
        value_heads=required("linear_num_value_heads"),
        key_dim=required("linear_key_head_dim"),
        value_dim=required("linear_value_head_dim"),
        taps=required("linear_conv_kernel_dim"),
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
