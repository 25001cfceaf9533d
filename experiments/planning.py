"""What a run will sample, write and hold, from its configuration alone: no weights, no accelerator, no compiling."""

import dataclasses
import math
from typing import Any

import jax
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.command import as_dict
from experiments.compiling.arrays import Kept, Lengths, device_bytes, kept_arrays, request_arrays
from experiments.compiling.chips import chip_of, chips_in
from rlvr_jax.models import ModelConfig
from rlvr_jax.sampling import SamplingSettings, begin
from rlvr_jax.sharding import AnyMesh, MeshShape, batch_shards, planned_mesh
from rlvr_jax.training import TrainConfig
from rlvr_jax.training.setup import check_shares


def _devices(config: TrainConfig, topology: str | None) -> int:
    """Of the topology; else as many as the mesh names; else those that are here."""
    if topology is not None:
        return chips_in(topology)
    sizes = tuple(as_dict(config.mesh).values())
    return jax.device_count() if -1 in sizes else math.prod(sizes)


def plan(config: TrainConfig, model: ModelConfig, lengths: Lengths, topology: str | None = None) -> dict[str, Any]:
    """What the run samples and writes at most, and the least that each device holds.

    Raises UserError for a mesh that does not fit the devices, the model or the batch.
    """
    devices = _devices(config, topology)
    mesh = planned_mesh(config.mesh, devices)
    decode_mesh = mesh if config.decode_mesh is None else planned_mesh(MeshShape(*config.decode_mesh), devices)
    check_shares(config, mesh, decode_mesh)
    model = dataclasses.replace(model, compute_dtype=config.compute_dtype)
    kept = kept_arrays(config, model, mesh, decode_mesh)
    work = _work(config, lengths.completion)
    figures = {
        "lengths": as_dict(lengths),
        "work": work,
        "mesh": dict(mesh.shape),
        "decode_mesh": dict(decode_mesh.shape),
        "memory": _memory(config, model, kept, lengths, decode_mesh),
        "files": _files(config, kept, work),
    }
    if topology is not None:
        figures |= {"topology": topology, "hbm_bytes": chip_of(topology).hbm_bytes}
    return figures


def _work(config: TrainConfig, max_new_tokens: int) -> dict[str, int]:
    sampled = config.prompts_per_step * config.samples_per_prompt * config.rollouts_per_step
    every, questions = config.evaluate_every, config.evaluation_questions * config.evaluation_samples
    evaluations = 2 + ((config.steps - 1) // every if every else 0)
    return {
        "steps": config.steps,
        "completions": config.steps * sampled,
        "new_tokens": config.steps * sampled * max_new_tokens,
        "updates": config.steps * config.updates_per_rollout,
        "evaluations": evaluations,
        "evaluated_completions": evaluations * questions,
        "evaluated_tokens": evaluations * questions * max_new_tokens,
        "checkpoints": -(-config.steps // config.checkpoint_every) if config.checkpoint_every else 0,
    }


def _memory(
    config: TrainConfig, model: ModelConfig, kept: Kept, lengths: Lengths, decode_mesh: AnyMesh
) -> dict[str, dict[str, float]]:
    """Bytes of one device while it updates and while it samples, by what they are of."""
    state = {
        "trained weights": device_bytes(kept.state.params),
        "optimizer": device_bytes(kept.state) - device_bytes(kept.state.params),
    }
    if kept.reference is not None:
        state["first policy's weights"] = device_bytes(kept.reference)
    sampling = dict(state)
    if kept.is_copy:
        sampling["weights to sample from"] = device_bytes(kept.sampled)
    sampling["keys and values"] = _cache_bytes(config, model, kept, lengths, decode_mesh)
    phases = {"update": state | {"gradient": device_bytes(kept.state.params)}, "sampling": sampling}
    return {name: parts | {"together": sum(parts.values())} for name, parts in phases.items()}


def _cache_bytes(config: TrainConfig, model: ModelConfig, kept: Kept, lengths: Lengths, decode_mesh: AnyMesh) -> float:
    """Of prefix, prompts and completions, recurrent states with them."""
    shards = batch_shards(decode_mesh)
    settings = SamplingSettings(
        model, config.samples_per_prompt, lengths.completion, shards, config.slots, config.rollout
    )
    request = request_arrays(config, decode_mesh, lengths)
    begun, slots = jax.eval_shape(lambda p, r: begin(p, r, settings=settings), kept.sampled, request)
    # By shares of the batch, and heads lie where the weights that make them do.
    whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((begun.cache, slots.past)))
    return whole / shards / decode_mesh.shape["tensor"]


def _files(config: TrainConfig, kept: Kept, work: dict[str, int]) -> dict[str, Any]:
    """In the run's folder, see `rlvr_jax.training.run_folder`."""
    saved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept.state))
    stay = min(work["checkpoints"], config.keep_checkpoints + 1)
    return {
        "run.json": 1,
        "metrics.jsonl": 1,
        "timings.jsonl": 1,
        "tensorboard/": 1,
        "completions/": config.steps,
        "evaluations/": work["evaluations"],
        "checkpoints/": stay,
        "checkpoint_bytes": stay * saved,
    }


def shown(config: TrainConfig, figures: dict[str, Any]) -> Group:
    """The plan as tables."""
    work, files, memory = figures["work"], figures["files"], figures["memory"]
    total = Table(title=f"{config.task} with {config.model}, {config.objective}", title_justify="left")
    for column in ("", "in all"):
        total.add_column(column, justify="right" if column else "left")
    for name, value in work.items():
        total.add_row(name.replace("_", " "), f"{value:,}")
    mesh = ", ".join(f"{name} {size}" for name, size in figures["mesh"].items())
    where = f"{figures.get('topology', 'devices')} ({mesh})"
    held = Table(title=f"GB per device on {where}", title_justify="left")
    for column in ("", *memory):
        held.add_column(column, justify="right" if column else "left")
    parts = list(dict.fromkeys(name for phase in memory.values() for name in phase if name != "together"))
    for name in (*parts, "together"):
        if name == "together":
            held.add_section()
        held.add_row(name, *(f"{phase[name] / 1e9:.2f}" if name in phase else "" for phase in memory.values()))
    if "hbm_bytes" in figures:
        size = figures["hbm_bytes"]
        held.add_row(f"of {size / 1e9:.0f} GB HBM", *(f"{phase['together'] / size:.0%}" for phase in memory.values()))
    lengths = figures["lengths"]
    note = (
        f"New tokens at most: completions of {lengths['completion']}. Keys and values: prompts of "
        f"{lengths['prompt']} tokens, prefix {lengths['prefix']}. Activations and other temporaries come on top: "
        "experiments.aot compiles the programs and counts them."
    )
    written = Table(title=f"Files in {config.folder}", title_justify="left")
    for column in ("", "number"):
        written.add_column(column, justify="right" if column else "left")
    for name, value in files.items():
        if name != "checkpoint_bytes":
            written.add_row(name, str(value))
    written.add_row("checkpoints together", f"{files['checkpoint_bytes'] / 1e9:.1f} GB")
    return Group(total, held, Text(note), written)
