"""GGUF files: turned once into a Hugging Face folder, which is then loaded like any other.

Weights are dequantised to float32; the tokenizer is rebuilt from the file's own vocabulary and merges. A field or
tensor that the reader does not know is refused by name: it may change what the others mean.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlvr_jax.cache import cache_folder
from rlvr_jax.errors import UserError
from rlvr_jax.models.config import ModelConfig, config_from_hugging_face
from rlvr_jax.models.weights import checkpoint_layout

_FORMAT = 2
"""Raised when the conversion changes, so that old conversions in the cache are left alone."""

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""`general.architecture`, which is also the `model_type`, and the class of transformers."""

_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "layers.attention_norm.scale": "blk.{}.attn_norm.weight",
    "layers.attention.query": "blk.{}.attn_q.weight",
    "layers.attention.key": "blk.{}.attn_k.weight",
    "layers.attention.value": "blk.{}.attn_v.weight",
    "layers.attention.output": "blk.{}.attn_output.weight",
    "layers.attention.query_bias": "blk.{}.attn_q.bias",
    "layers.attention.key_bias": "blk.{}.attn_k.bias",
    "layers.attention.value_bias": "blk.{}.attn_v.bias",
    "layers.attention.query_norm.scale": "blk.{}.attn_q_norm.weight",
    "layers.attention.key_norm.scale": "blk.{}.attn_k_norm.weight",
    "layers.mlp_norm.scale": "blk.{}.ffn_norm.weight",
    "layers.mlp.gate": "blk.{}.ffn_gate.weight",
    "layers.mlp.up": "blk.{}.ffn_up.weight",
    "layers.mlp.down": "blk.{}.ffn_down.weight",
    "norm.scale": "output_norm.weight",
    "head": "output.weight",
}

_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
)  # fmt: skip
"""Tensor types that the gguf package dequantises."""

_VOCABULARY = ("tokens", "token_type", "merges")

_CONTROL_TOKEN, _USER_DEFINED_TOKEN = 3, 4

_QWEN_END = "<|endoftext|>"
"""In the generation config of every Qwen 2 to 3, alone or beside the end of a turn; GGUF has room for one of them."""

# Where Qwen's tokenizer cuts text before it merges bytes: English contractions, words with the sign before them, single
# digits, runs of signs, line ends, other white space.
_QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def convert_gguf(file: Path) -> Path:
    """The Hugging Face folder of a GGUF file, made in the cache the first time.

    Raises UserError when the file is not GGUF, or names the field or tensor that is missing or not supported.
    """
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = cache_folder() / "converted" / f"{file.stem}-{digest[:16]}-v{_FORMAT}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{file.stem}-"))
    try:
        _write(file, scratch)
        os.replace(scratch, folder)
    except OSError:
        # Another process may have finished the same conversion first; else this is a real failure.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write(file: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError) as error:
        raise UserError(f"{file} is not a whole GGUF file ({error})") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    fields = _hugging_face_config(file, metadata, tied="output.weight" not in tensors)
    config = config_from_hugging_face(fields)
    _write_tokenizer(file, metadata, folder)
    save_file(
        _hugging_face_tensors(file, tensors, config, fields["model_type"]),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(fields, indent=2))


def _hugging_face_tensors(
    file: Path, tensors: dict[str, Any], config: ModelConfig, family: str
) -> dict[str, np.ndarray]:
    """Float32 weights by their Hugging Face names; every tensor of the file is used, or refused before any is read."""
    from gguf import dequantize

    layout = checkpoint_layout(config)
    sources = {name: _GGUF_NAMES[place.parameter].format(place.layer) for name, place in layout.items()}
    if unknown := sorted(tensors.keys() - set(sources.values())):
        raise UserError(f"{file}: tensor {unknown[0]} is not supported (and {len(unknown) - 1} more)")
    for name, place in layout.items():
        source = sources[name]
        if source not in tensors:
            raise UserError(f"{file}: tensor {source} is missing")
        tensor = tensors[source]
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if shape != place.shape:
            raise UserError(f"{file}: tensor {source} has shape {shape}, the file's own fields ask for {place.shape}")
        if tensor.tensor_type.name not in _TYPES:
            raise UserError(
                f"{file}: tensor {source} is of type {tensor.tensor_type.name}, accepted are {', '.join(_TYPES)}"
            )
    weights = {}
    for name, place in layout.items():
        tensor = tensors[sources[name]]
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(place.shape)
        heads = {"layers.attention.query": config.num_heads, "layers.attention.key": config.num_kv_heads}
        if family == "llama" and place.parameter in heads:
            weight = _half_split_rows(weight, heads[place.parameter])
        weights[name] = weight
    return weights


def _half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp interleaves the two halves of each Llama head's query and key rows; this puts them back apart."""
    return weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _hugging_face_config(file: Path, metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """The `config.json` that the file's fields describe."""
    if metadata.get("split.count", 1) > 1:
        raise UserError(f"{file}: split.count is {metadata['split.count']}, this reader accepts a single file")
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UserError(
            f"{file}: general.architecture is {architecture!r}, "
            f"this port accepts {' or '.join(map(repr, _ARCHITECTURES))}"
        )
    own = f"{architecture}."
    unread = {name.removeprefix(own): value for name, value in metadata.items() if name.startswith(own)}

    def read(name: str) -> Any:
        value = _required(file, metadata, f"{own}{name}")
        del unread[name]
        if isinstance(value, list):
            raise UserError(f"{file}: {own}{name} is {value!r}, accepted is one number for all layers")
        return value

    hidden, heads = read("embedding_length"), read("attention.head_count")
    head_dim = read("attention.key_length") if "attention.key_length" in unread else hidden // heads
    tokens = _required(file, metadata, "tokenizer.ggml.tokens")
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    if architecture != "llama" and _QWEN_END in tokens:
        ends.append(tokens.index(_QWEN_END))
    ends = list(dict.fromkeys(end for end in ends if end is not None))
    fields = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": len(tokens),
        "hidden_size": hidden,
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read("attention.head_count_kv"),
        "head_dim": head_dim,
        "max_position_embeddings": read("context_length"),
        "rope_theta": read("rope.freq_base"),
        # Stored as float32; written as the decimal it came from, as the original config has it.
        "rms_norm_eps": float(np.format_float_positional(np.float32(read("attention.layer_norm_rms_epsilon")))),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "torch_dtype": "float32",
    }
    accepted = {
        "vocab_size": fields["vocab_size"],
        "attention.value_length": head_dim,
        "attention.causal": True,
        "rope.dimension_count": head_dim,
        "rope.scaling.type": "none",
        "expert_count": 0,
        "expert_used_count": 0,
    }
    for name, value in unread.items():
        if name not in accepted:
            raise UserError(f"{file}: {own}{name} is {value!r}, this reader accepts files without it")
        if value != accepted[name]:
            raise UserError(f"{file}: {own}{name} is {value!r}, this reader accepts {accepted[name]!r}")
    return fields


def _required(file: Path, metadata: dict[str, Any], name: str) -> Any:
    if name not in metadata:
        raise UserError(f"{file}: {name} is missing")
    return metadata[name]


def _write_tokenizer(file: Path, metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind not in (("gpt2", "smollm"), ("gpt2", "qwen2")):
        raise UserError(f"{file}: tokenizer is {kind}, this reader accepts ('gpt2', 'smollm') or ('gpt2', 'qwen2')")
    for name in ("add_bos_token", "add_eos_token"):
        if metadata.get(f"tokenizer.ggml.{name}"):
            raise UserError(f"{file}: tokenizer.ggml.{name} is True, this reader accepts False")
    tokens, types, merges = (_required(file, metadata, f"tokenizer.ggml.{name}") for name in _VOCABULARY)
    merges = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind[1] == "smollm")
    if kind[1] == "smollm":
        # Every digit is a token of its own in this family.
        pieces = pre_tokenizers.Digits(individual_digits=True)
    else:
        tokenizer.normalizer = normalizers.NFC()
        pieces = pre_tokenizers.Split(Regex(_QWEN_PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, byte_level])
    tokenizer.decoder = decoders.ByteLevel()

    def of_type(wanted: int, *, special: bool) -> list[AddedToken]:
        chosen = [token for token, number in zip(tokens, types, strict=True) if number == wanted]
        return [AddedToken(token, special=special, normalized=False) for token in chosen]

    tokenizer.add_special_tokens(of_type(_CONTROL_TOKEN, special=True))
    tokenizer.add_tokens(of_type(_USER_DEFINED_TOKEN, special=False))
    tokenizer.save(str(folder / "tokenizer.json"))

    def token(name: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if index is None else tokens[index]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata[f"{metadata['general.architecture']}.context_length"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
