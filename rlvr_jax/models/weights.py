"""Weights in: Hugging Face safetensors to the stacked parameter pytree, each straight to its device shards."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from rlvr_jax.errors import UserError
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Params, abstract_params, logical_axes
from rlvr_jax.sharding import AnyMesh, named_sharding

_LAYER_NAMES = {
    "attention_norm.scale": "input_layernorm.weight",
    "attention.query": "self_attn.q_proj.weight",
    "attention.key": "self_attn.k_proj.weight",
    "attention.value": "self_attn.v_proj.weight",
    "attention.output": "self_attn.o_proj.weight",
    "attention.query_bias": "self_attn.q_proj.bias",
    "attention.key_bias": "self_attn.k_proj.bias",
    "attention.value_bias": "self_attn.v_proj.bias",
    "attention.output_bias": "self_attn.o_proj.bias",
    "attention.query_norm.scale": "self_attn.q_norm.weight",
    "attention.key_norm.scale": "self_attn.k_norm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
_DELTA_NAMES = {
    "attention_norm.scale": "input_layernorm.weight",
    "attention.channels": "linear_attn.in_proj_qkv.weight",
    "attention.gate": "linear_attn.in_proj_z.weight",
    "attention.write": "linear_attn.in_proj_b.weight",
    "attention.decay": "linear_attn.in_proj_a.weight",
    "attention.convolution": "linear_attn.conv1d.weight",
    "attention.log_rate": "linear_attn.A_log",
    "attention.decay_bias": "linear_attn.dt_bias",
    "attention.norm.scale": "linear_attn.norm.weight",
    "attention.output": "linear_attn.out_proj.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
HUGGING_FACE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    **{f"layers.{ours}": f"model.layers.{{}}.{theirs}" for ours, theirs in _LAYER_NAMES.items()},
    **{f"delta_layers.{ours}": f"model.layers.{{}}.{theirs}" for ours, theirs in _DELTA_NAMES.items()},
    "norm.scale": "model.norm.weight",
    "head": "lm_head.weight",
}
"""Our parameter (path joined by dots) to the checkpoint's tensor; `{}` is the layer."""

# Buffers that older checkpoints carry and no one needs: recomputed, or the tied head repeated.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
# Of Qwen3.5, which reads text as a part of a larger model: its eyes, and the heads that guess further tokens.
_OTHER_PARTS = re.compile(r"(model\.visual|mtp)\..*")
_TEXT_PART = "model.language_model."

_DTYPES = ("F32", "BF16", "F16")

_CHUNK_BYTES = 2**23
"""Read at a time, beside the buffer of the shard that is being put together."""


class Place(NamedTuple):
    """Where a checkpoint's tensor lies in the parameters."""

    parameter: str
    """Path joined by dots."""
    layer: int | None
    """Row of the leading axis of a parameter that stacks layers, else `None`."""
    shape: tuple[int, ...]
    """Of the tensor."""


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file; `dtype` in the spelling of that format."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def parameter_name(path: tuple) -> str:
    """A path of `jax.tree_util` joined by dots."""
    return ".".join(key.key for key in path)


def checkpoint_layout(config: ModelConfig) -> dict[str, Place]:
    """Every tensor of a text checkpoint by its Hugging Face name, in the order of `HUGGING_FACE_NAMES`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    shapes = {parameter_name(path): leaf.shape for path, leaf in leaves}
    layout = {}
    for parameter, name in HUGGING_FACE_NAMES.items():
        if parameter not in shapes:  # such as the head, where it is the embedding
            continue
        shape = shapes[parameter]
        if "{}" in name:
            numbers = _layer_numbers(config, parameter.partition(".")[0])
            layout |= {name.format(number): Place(parameter, row, shape[1:]) for row, number in enumerate(numbers)}
        else:
            layout[name] = Place(parameter, None, shape)
    return layout


def _layer_numbers(config: ModelConfig, stack: str) -> list[int]:
    """Where in the checkpoint the rows of a stack of layers are."""
    block = config.delta.block if config.delta else 1
    return [i for i in range(config.num_layers) if ((i + 1) % block == 0) == (stack == "layers")]


def param_shardings(config: ModelConfig, mesh: AnyMesh) -> Params:
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
    if config.delta:
        sizes["tensor"]["linear_num_key_heads"] = config.delta.key_heads
    for axis, fields in sizes.items():
        for name, size in fields.items():
            if size % mesh.shape[axis]:
                raise UserError(f"mesh axis {axis} is {mesh.shape[axis]}: accepted is a divisor of {name} ({size})")
    return jax.tree.map(
        lambda axes: named_sharding(mesh, axes), logical_axes(config), is_leaf=lambda axes: isinstance(axes, tuple)
    )


def load_params(folder: Path, config: ModelConfig, mesh: Mesh) -> Params:
    """Float32 parameters from the safetensors files of a folder, placed on the mesh.

    Host memory holds one device's share of one parameter at a time, besides what lies on host devices. All names,
    shapes and dtypes are checked before any weight is read: raises UserError that names the file or tensor (and both
    shapes) when one is missing, unexpected, mis-shaped or cut off.
    """
    shardings = param_shardings(config, mesh)
    stored = _of_text(config, stored_tensors(folder))
    layout = checkpoint_layout(config)
    _check_tensors(folder, config, layout, stored)
    tensors: dict[str, list[StoredTensor]] = {}
    for tensor, place in layout.items():
        tensors.setdefault(place.parameter, []).append(stored[tensor])
    leaves, structure = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    placed = zip(leaves, jax.tree.leaves(shardings), strict=True)
    loaded: dict[str, jax.Array] = {}
    # Largest first: on host devices a parameter lies in memory twice while it is copied, and the last ones are small.
    for (path, abstract), sharding in sorted(placed, key=lambda item: -item[0][1].size):
        name = parameter_name(path)
        stacked = "{}" in HUGGING_FACE_NAMES[name]
        loaded[name] = _load_parameter(tensors[name], stacked, abstract, sharding)
    return jax.tree.unflatten(structure, [loaded[parameter_name(path)] for path, _ in leaves])


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """What the safetensors files of a folder hold, from their headers.

    Raises UserError for a file that is missing or cut off, or an index that is not one.
    """
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{index} is not an index of safetensors files (no weight_map in it)") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: {missing[0]} is missing")
    stored = {}
    for file in (folder / name for name in names):
        try:
            with safe_open(file, framework="numpy") as handle:
                for name in list(handle.keys()):
                    if name in stored:
                        raise UserError(f"{folder}: tensor {name} is both in {stored[name].file.name} and {file.name}")
                    described = handle.get_slice(name)
                    stored[name] = StoredTensor(file, name, tuple(described.get_shape()), described.get_dtype())
        except SafetensorError as error:
            raise UserError(f"{file} is not a whole safetensors file ({error})") from error
    return stored


def _of_text(config: ModelConfig, stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of the text decoder under the names that they have in a checkpoint of text alone."""
    if config.delta is None:
        return stored
    return {
        f"model.{name.removeprefix(_TEXT_PART)}" if name.startswith(_TEXT_PART) else name: tensor
        for name, tensor in stored.items()
        if not _OTHER_PARTS.fullmatch(name)
    }


def _check_tensors(
    folder: Path, config: ModelConfig, layout: Mapping[str, Place], stored: Mapping[str, StoredTensor]
) -> None:
    def and_more(names: Sequence[str]) -> str:
        return f" (and {len(names) - 1} more)" if len(names) > 1 else ""

    if missing := [name for name in layout if name not in stored]:
        name = missing[0]
        raise UserError(f"{folder}: tensor {name} of shape {layout[name].shape} is missing{and_more(missing)}")
    for name, place in layout.items():
        tensor = stored[name]
        if tensor.shape != place.shape:
            raise UserError(f"{tensor.file}: tensor {name} has shape {tensor.shape}, the config asks for {place.shape}")
        if tensor.dtype not in _DTYPES:
            raise UserError(f"{tensor.file}: tensor {name} has dtype {tensor.dtype}, accepted are {', '.join(_DTYPES)}")
    tied_head = {HUGGING_FACE_NAMES["head"]} if config.tie_word_embeddings else set()
    unexpected = sorted(name for name in stored.keys() - layout.keys() - tied_head if not _IGNORED.fullmatch(name))
    if unexpected:
        tensor = stored[unexpected[0]]
        raise UserError(
            f"{tensor.file}: unexpected tensor {unexpected[0]} of shape {tensor.shape}{and_more(unexpected)}"
        )


def _load_parameter(
    tensors: Sequence[StoredTensor], stacked: bool, abstract: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding
) -> jax.Array:
    """One parameter, its rows from `tensors` if stacked; devices that hold the same share get it from one reading."""
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(abstract.shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, abstract.shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    shards = []
    for bounds, devices in holders.items():
        buffer = np.empty([stop - start for start, stop in bounds], abstract.dtype)
        if stacked:
            for layer, row in zip(range(*bounds[0]), buffer, strict=True):
                _read(tensors[layer], bounds[1:], row)
        else:
            _read(tensors[0], bounds, buffer)
        # Waits, so that the buffer is free before the next one is made.
        shards += jax.block_until_ready([jax.device_put(buffer, device) for device in devices])
    return jax.make_array_from_single_device_arrays(abstract.shape, sharding, shards)


def _read(tensor: StoredTensor, bounds: Sequence[tuple[int, int]], target: np.ndarray) -> None:
    """Converts the part of a tensor within `bounds` (start and stop on each axis) into `target`, chunk by chunk."""
    from safetensors import safe_open

    (first, stop), *others = bounds
    rows = max(1, _CHUNK_BYTES // (4 * int(np.prod(tensor.shape[1:], dtype=np.int64))))
    for start in range(first, stop, rows):
        end = min(start + rows, stop)
        # Opened for each chunk: the file is mapped, and what was read of it counts as memory until it is closed.
        with safe_open(tensor.file, framework="numpy") as handle:
            part = handle.get_slice(tensor.name)[(slice(start, end), *(slice(*bound) for bound in others))]
            target[start - first : end - first] = part


def hugging_face_tensors(
    config: ModelConfig, read: Callable[[str, int | None], np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """(tensor name, array) of a whole checkpoint, from a reader of (our parameter name, layer)."""
    for name, place in checkpoint_layout(config).items():
        yield name, read(place.parameter, place.layer)
