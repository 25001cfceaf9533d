"""Weights out: parameters to a folder that transformers, vLLM and `load_params` read."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.models.config import text_fields
from rlvr_jax.models.decoder import Params, abstract_params
from rlvr_jax.models.loading import Model
from rlvr_jax.models.weights import Place, checkpoint_layout, parameter_name

Dtype = Literal["float32", "bfloat16"]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def check_new_folder(folder: Path) -> None:
    """Raises UserError unless the folder is new or empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"output is {str(folder)!r}: the folder is not empty; accepted is a new or an empty one")
    if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
        raise UserError(f"output is {str(folder)!r}: a file is there, accepted is a new folder")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of `folder` at the end; nothing is left of it after an error.

    Raises UserError unless `folder` is new or empty.
    """
    folder = folder.absolute()
    check_new_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    scratch.mkdir()
    try:
        yield scratch
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def export_model(
    model: Model, params: Params, folder: Path, *, shard_bytes: float = 5e9, dtype: Dtype = "bfloat16"
) -> tuple[Path, ...]:
    """Writes the model with these parameters as a Hugging Face folder; returns its weight files.

    Config, generation config and tokenizer are those of the model's own folder. Weights go into files of at most
    `shard_bytes` (a larger tensor has a file of its own), of which host memory holds one at a time; bfloat16 rounds
    to nearest even. The folder appears whole or not at all. Raises UserError when it is there and not empty, when
    `shard_bytes` is not positive, or when a parameter is missing or has another shape than the config asks for.
    """
    if not shard_bytes > 0:
        raise UserError(f"shard_bytes is {shard_bytes}: accepted is a positive number")
    leaves = _leaves(model, params)
    layout = checkpoint_layout(model.config)
    shards = _shards(layout, jnp.dtype(dtype).itemsize, shard_bytes)

    with new_folder(folder) as scratch:
        names = _write_shards(scratch, leaves, layout, shards, jnp.dtype(dtype))
        _write_config(scratch, model, dtype)
        for name in _TOKENIZER_FILES:
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, scratch / name)
        for name in names:  # which safetensors lets only their owner read, where a server may be another user
            (scratch / name).chmod((scratch / "config.json").stat().st_mode)
    return tuple(folder.absolute() / name for name in names)


def _leaves(model: Model, params: Params) -> dict[str, jax.Array]:
    """Parameters by dotted name, all those and only those that the config describes."""
    given, expected = (
        {parameter_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
        for tree in (params, abstract_params(model.config))
    )
    for name in sorted(given.keys() | expected.keys()):
        shapes = [tuple(leaves[name].shape) if name in leaves else None for leaves in (given, expected)]
        if shapes[0] != shapes[1]:
            raise UserError(f"parameter {name} has shape {shapes[0]}, the config of {model.name} asks for {shapes[1]}")
    return given


def _shards(layout: Mapping[str, Place], itemsize: int, shard_bytes: float) -> list[list[str]]:
    """Tensor names by file, in order: a file is closed when the next tensor would not fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, place in layout.items():
        size = int(np.prod(place.shape, dtype=np.int64)) * itemsize
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_shards(
    folder: Path, leaves: Mapping[str, Any], layout: Mapping[str, Place], shards: list[list[str]], dtype: np.dtype
) -> list[str]:
    """Writes the weight files and, if there are several, their index; returns the files' names."""
    from safetensors.numpy import save_file

    def tensor(name: str) -> np.ndarray:
        place = layout[name]
        leaf = leaves[place.parameter]
        # Cast where it lies: half the bytes to move.
        return np.ascontiguousarray((leaf if place.layer is None else leaf[place.layer]).astype(dtype))

    files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = ["model.safetensors"]
    for file, names in zip(files, shards, strict=True):
        # transformers refuses a file that does not say which library's layout it has.
        save_file({name: tensor(name) for name in names}, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        parameters = sum(int(np.prod(place.shape, dtype=np.int64)) for place in layout.values())
        index = {
            "metadata": {"total_parameters": parameters, "total_size": parameters * dtype.itemsize},
            "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return files


def _write_config(folder: Path, model: Model, dtype: Dtype) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    # Of a multimodal model (Qwen3.5) the text decoder is written, as a model of its own.
    fields = text_fields(json.loads((model.folder / "config.json").read_text()))
    fields.pop("torch_dtype", None)  # the name of `dtype` before transformers 5
    fields["dtype"] = dtype
    # vLLM finds the model by it; transformers does without.
    fields.setdefault("architectures", [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[fields["model_type"]]])
    (folder / "config.json").write_text(json.dumps(fields, indent=2))

    generation = model.folder / "generation_config.json"
    if generation.is_file():
        shutil.copyfile(generation, folder / generation.name)
        return
    ends = model.eos_token_ids
    told = {"bos_token_id": fields.get("bos_token_id"), "eos_token_id": list(ends) if len(ends) > 1 else ends[0]}
    told = {name: value for name, value in told.items() if value is not None}
    (folder / generation.name).write_text(json.dumps(told, indent=2))
