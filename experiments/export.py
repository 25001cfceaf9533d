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

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.models import (
    Model,
    adapted,
    export_model,
    load_adapters,
    load_params,
    open_model,
    save_adapters,
)
from rlvr_jax.models.export import Dtype, check_new_folder
from rlvr_jax.sharding import MeshShape, make_mesh
from rlvr_jax.training import restore_policy, restore_trained, run_config


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
    known = run_config(run_folder) if is_run else {"model": arguments.model}
    if arguments.adapters_only and not known.get("lora_rank"):
        kind = "the run trained all weights" if is_run else "not the folder of a run"
        raise UserError(f"adapters_only with {arguments.model!r}: {kind}, accepted is a run with LoRA")
    model = open_model(known["model"])
    mesh = make_mesh(arguments.mesh)
    if arguments.adapters_only:
        adapters, settings, step = restore_trained(run_folder, model.config, mesh)
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
