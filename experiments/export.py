"""A model, or the latest checkpoint of a run, as a folder that transformers and vLLM load.

python -m experiments.export runs/arithmetic-sign-seed0 exported/arithmetic-sign
python -m experiments.export embedded:smollm2-135m-instruct exported/smollm2 --dtype float32

Adapters of a run with LoRA are joined with the model's weights, or written alone, as PEFT and vLLM load them. Adapters
from elsewhere come in the same way: joined with their model into a folder that every command takes.

python -m experiments.export runs/gsm8k-sign-seed0 exported/adapters --adapters-only
python -m experiments.export OWNER/NAME exported/joined --adapters PEFT_FOLDER
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import jax
import tyro
from jax.sharding import Mesh

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.models import (
    LoraSettings,
    Model,
    adapted,
    export_model,
    load_adapters,
    load_params,
    open_model,
    save_adapters,
)
from rlvr_jax.models.decoder import Params
from rlvr_jax.models.export import Dtype, check_new_folder
from rlvr_jax.models.lora import abstract_adapters, adapter_shardings
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import Checkpoints, restore_policy, run_config


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a Hugging Face folder."""

    model: Annotated[str, tyro.conf.Positional]
    """Hub id, local folder, .gguf file, embedded:NAME, or the folder of a run."""
    output: Annotated[Path, tyro.conf.Positional]
    """A new or empty folder."""
    dtype: Dtype = "bfloat16"
    """Of the written weights. A run's parameters are float32; float32 keeps them bit for bit."""
    shard_gigabytes: float = 5.0
    """The most that one weight file holds, in units of 1e9 bytes. Adapters alone are one file."""
    adapters_only: bool = False
    """Of a run with LoRA: only its adapters, in PEFT's format."""
    adapters: Path | None = None
    """A folder of LoRA adapters in PEFT's format, to be joined with the weights."""
    mesh: MeshShape = MeshShape()
    json: bool = False
    """Print what was written as one JSON object on the last line."""


def restore_adapters(run_folder: Path, model: Model, mesh: Mesh) -> tuple[Params, LoraSettings, int]:
    """A run's adapters from its latest checkpoint, their settings, and the step of it; no weights are read.

    Raises UserError when the run has no adapters or no checkpoint.
    """
    known = run_config(run_folder)
    if not known.get("lora_rank"):
        raise UserError(f"adapters_only: the run in {str(run_folder)!r} trained all weights, accepted is one with LoRA")
    if not (run_folder / "checkpoints").is_dir():
        raise UserError(f"{str(run_folder)!r} holds no checkpoints")
    settings = LoraSettings(known["lora_rank"], known["lora_alpha"], tuple(known["lora_targets"]))
    like = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        abstract_adapters(model.config, settings),
        adapter_shardings(model.config, settings, mesh),
    )
    with Checkpoints(run_folder) as checkpoints:
        return checkpoints.restore_params(like), settings, checkpoints.latest_step


def base_name(model: Model) -> str:
    """What PEFT finds the model by: its hub id, else the folder of its weights."""
    local = model.name.startswith("embedded:") or Path(model.name).expanduser().exists()
    return str(model.folder.absolute()) if local else model.name


def main() -> None:
    arguments = parse(Export, __doc__)
    if not arguments.shard_gigabytes > 0:
        raise UserError(f"shard_gigabytes is {arguments.shard_gigabytes}: accepted is a positive number")
    if arguments.adapters_only and arguments.adapters:
        raise UserError(f"adapters is {str(arguments.adapters)!r}: accepted is none with adapters_only")
    # Before the weights are read, which can take minutes.
    check_new_folder(arguments.output)
    run_folder = Path(arguments.model)
    is_run = (run_folder / "run.json").is_file()
    if arguments.adapters_only and not is_run:
        raise UserError(f"adapters_only: {arguments.model!r} is not the folder of a run, accepted is a run with LoRA")
    model = open_model(run_config(run_folder)["model"] if is_run else arguments.model)
    mesh = make_mesh(arguments.mesh)
    if arguments.adapters_only:
        adapters, settings, step = restore_adapters(run_folder, model, mesh)
        params = jax.tree.map(lambda x: x.astype(arguments.dtype), adapters)
        save_adapters(arguments.output, params, model.config, settings, base_name(model))
        files = (arguments.output / "adapter_model.safetensors",)
    else:
        others = load_adapters(arguments.adapters, model.config, mesh) if arguments.adapters else None
        if is_run:
            params, step = restore_policy(run_folder, model, mesh)
        else:
            params, step = load_params(model.folder, model.config, mesh), None
        if others:
            params = adapted(params, *others)
        files = export_model(
            model, params, arguments.output, shard_bytes=arguments.shard_gigabytes * 1e9, dtype=arguments.dtype
        )
    written = {
        "output": str(arguments.output),
        "model": model.name,
        "step": step,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "dtype": arguments.dtype,
        "bytes": sum(file.stat().st_size for file in files),
        "files": [file.name for file in files],
    }
    if arguments.json:
        print_json(written)
        return
    source = model.name if step is None else f"{arguments.model} at step {step}"
    print(
        f"{source}: {written['parameters']:,} parameters in {arguments.dtype}, "
        f"{written['bytes'] / 1e9:.3g} GB in {len(files)} file{'s' if len(files) > 1 else ''}, "
        f"written to {arguments.output}"
    )


if __name__ == "__main__":
    run(main)
