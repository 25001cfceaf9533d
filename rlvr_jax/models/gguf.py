"""GGUF files: turned once into a Hugging Face folder, which is then loaded like any other.

Weights are dequantised to float32; the tokenizer is rebuilt from the file's own vocabulary and merges.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.models.cache import cache_folder
from rlvr_jax.models.config import config_from_hugging_face
from rlvr_jax.models.weights import hugging_face_tensors

_FORMAT = 1
"""Raised when the conversion changes, so that old conversions in the cache are left alone."""

_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "layers.attention_norm.scale": "blk.{}.attn_norm.weight",
    "layers.attention.query": "blk.{}.attn_q.weight",
    "layers.attention.key": "blk.{}.attn_k.weight",
    "layers.attention.value": "blk.{}.attn_v.weight",
    "layers.attention.output": "blk.{}.attn_output.weight",
    "layers.mlp_norm.scale": "blk.{}.ffn_norm.weight",
    "layers.mlp.gate": "blk.{}.ffn_gate.weight",
    "layers.mlp.up": "blk.{}.ffn_up.weight",
    "layers.mlp.down": "blk.{}.ffn_down.weight",
    "norm.scale": "output_norm.weight",
    "head": "output.weight",
}

_CONTROL_TOKEN = 3


def convert_gguf(file: Path) -> Path:
    """The Hugging Face folder of a GGUF file, made in the cache the first time.

    Raises UserError when the file is not GGUF, or holds an architecture or tokenizer that is not supported.
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
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError) as error:
        raise UserError(f"{file} is not a whole GGUF file ({error})") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    fields = _hugging_face_config(file, metadata, tied="output.weight" not in tensors)
    config = config_from_hugging_face(fields)

    def read(name: str, layer: int | None) -> np.ndarray:
        tensor_name = _GGUF_NAMES[name].format(layer)
        if tensor_name not in tensors:
            raise UserError(f"{file}: tensor {tensor_name} is missing")
        tensor = tensors[tensor_name]
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        weight = weight.reshape(tuple(reversed([int(size) for size in tensor.shape])))
        if name == "layers.attention.query":
            return _half_split_rows(weight, config.num_heads)
        if name == "layers.attention.key":
            return _half_split_rows(weight, config.num_kv_heads)
        return weight

    save_file(dict(hugging_face_tensors(config, read)), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    _write_tokenizer(file, metadata, folder)


def _half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp interleaves the two halves of each head's query and key rows; this puts them back apart."""
    return weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _hugging_face_config(file: Path, metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{file}: general.architecture is {architecture!r}, this port accepts 'llama'")
    scaled = [name for name in metadata if name.startswith("llama.rope.scaling")]
    if scaled:
        raise UserError(
            f"{file}: {scaled[0]} is {metadata[scaled[0]]!r}, this reader accepts GGUF without rope scaling"
        )

    def read(name: str) -> Any:
        if f"llama.{name}" not in metadata:
            raise UserError(f"{file}: llama.{name} is missing")
        return metadata[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": read("embedding_length"),
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": read("attention.head_count"),
        "num_key_value_heads": read("attention.head_count_kv"),
        "max_position_embeddings": read("context_length"),
        "rope_theta": read("rope.freq_base"),
        # Stored as float32; written as the decimal it came from, as the original config has it.
        "rms_norm_eps": float(np.format_float_positional(np.float32(read("attention.layer_norm_rms_epsilon")))),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def _write_tokenizer(file: Path, metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UserError(f"{file}: tokenizer is {kind}, this reader accepts ('gpt2', 'smollm')")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # Every digit is a token of its own in this family.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
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
        "model_max_length": metadata["llama.context_length"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
