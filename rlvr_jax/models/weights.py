"""Weights in: Hugging Face safetensors to the stacked parameter pytree, each straight to its device shards."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from rlvr_jax.errors import UserError
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Params, abstract_params, logical_axes
from rlvr_jax.sharding import named_sharding

HUGGING_FACE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "layers.attention_norm.scale": "model.layers.{}.input_layernorm.weight",
    "layers.attention.query": "model.layers.{}.self_attn.q_proj.weight",
    "layers.attention.key": "model.layers.{}.self_attn.k_proj.weight",
    "layers.attention.value": "model.layers.{}.self_attn.v_proj.weight",
    "layers.attention.output": "model.layers.{}.self_attn.o_proj.weight",
    "layers.mlp_norm.scale": "model.layers.{}.post_attention_layernorm.weight",
    "layers.mlp.gate": "model.layers.{}.mlp.gate_proj.weight",
    "layers.mlp.up": "model.layers.{}.mlp.up_proj.weight",
    "layers.mlp.down": "model.layers.{}.mlp.down_proj.weight",
    "norm.scale": "model.norm.weight",
    "head": "lm_head.weight",
}
"""Our parameter (path joined by dots) to the checkpoint's tensor; `{}` is the layer."""

# Buffers that older checkpoints carry and no one needs: recomputed, or the tied head repeated.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def param_shardings(config: ModelConfig, mesh: Mesh) -> Params:
    """The sharding of every parameter. Raises UserError for sizes that the mesh does not divide."""
    sizes = {
        "tensor": {
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "intermediate_size": config.intermediate_size,
            "vocab_size": config.vocab_size,
        },
        "fsdp": {"hidden_size": config.hidden_size},
    }
    for axis, fields in sizes.items():
        for name, size in fields.items():
            if size % mesh.shape[axis]:
                raise UserError(f"mesh axis {axis} is {mesh.shape[axis]}: accepted is a divisor of {name} ({size})")
    return jax.tree.map(
        lambda axes: named_sharding(mesh, axes), logical_axes(config), is_leaf=lambda axes: isinstance(axes, tuple)
    )


def load_params(folder: Path, config: ModelConfig, mesh: Mesh) -> Params:
    """Float32 parameters from the safetensors files of a folder, placed on the mesh.

    Raises UserError that names the tensor (and both shapes) when one is missing, unexpected or mis-shaped.
    """
    shardings = param_shardings(config, mesh)
    with _Checkpoint(folder) as checkpoint:
        expected = set()

        def load(path: tuple, abstract: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array:
            name = HUGGING_FACE_NAMES[".".join(key.key for key in path)]
            stacked = "{}" in name
            names = [name.format(i) for i in range(abstract.shape[0])] if stacked else [name]
            expected.update(names)
            shape = abstract.shape[1:] if stacked else abstract.shape
            tensors = [checkpoint.read(name, shape) for name in names]
            return jax.device_put(np.stack(tensors) if stacked else tensors[0], sharding)

        params = jax.tree_util.tree_map_with_path(load, abstract_params(config), shardings)
        tied_head = {HUGGING_FACE_NAMES["head"]} if config.tie_word_embeddings else set()
        extra = {name for name in checkpoint.names - expected - tied_head if not _IGNORED.fullmatch(name)}
        if extra:
            raise UserError(f"{folder}: unexpected tensor {min(extra)} (and {len(extra) - 1} more)")
    return params


class _Checkpoint:
    """The safetensors files of a folder, opened once and read tensor by tensor."""

    def __init__(self, folder: Path):
        self.folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{folder}: {missing[0]} is missing")
        self._files = [folder / name for name in files]

    def __enter__(self) -> "_Checkpoint":
        from safetensors import SafetensorError, safe_open

        self._where = {}
        for file in self._files:
            try:
                handle = safe_open(file, framework="numpy")
            except SafetensorError as error:
                raise UserError(f"{file} is not a whole safetensors file ({error})") from error
            self._where |= dict.fromkeys(handle.keys(), handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._where = {}

    @property
    def names(self) -> set[str]:
        return set(self._where)

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in self._where:
            raise UserError(f"{self.folder}: tensor {name} of shape {shape} is missing")
        tensor = self._where[name].get_tensor(name)
        if tensor.shape != shape:
            raise UserError(f"{self.folder}: tensor {name} has shape {tensor.shape}, the config asks for {shape}")
        return tensor.astype(np.float32)


def hugging_face_tensors(
    config: ModelConfig, read: Callable[[str, int | None], np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """(tensor name, array) of a whole checkpoint, from a reader of (our parameter name, layer)."""
    for name, tensor_name in HUGGING_FACE_NAMES.items():
        if name == "head" and config.tie_word_embeddings:
            continue
        for layer in range(config.num_layers) if "{}" in tensor_name else [None]:
            yield tensor_name.format(layer), read(name, layer)
