"""A run's programs as they are compiled for devices that need not exist: arguments are shapes with shardings."""

import dataclasses
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments.compiling.arrays import Lengths, batch_arrays, kept_arrays, request_arrays, with_sharding
from experiments.compiling.costs import Cost, Reader
from rlvr_jax.models import ModelConfig, abstract_params
from rlvr_jax.models.lora import abstract_adapters
from rlvr_jax.sampling import Request, SamplingSettings, begin, finish
from rlvr_jax.sharding import batch_shards, named_sharding
from rlvr_jax.training import TrainConfig, update
from rlvr_jax.training.setup import update_settings


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program on one device."""

    seconds: float
    """That compiling took."""
    memory: Mapping[str, float]
    """Bytes of arguments, outputs (without those in place of arguments), temporaries and code; and `resident`, what
    the run keeps beside them; `total` is their sum."""
    cost: Cost | None
    """None where it does not fit the compiler's own limit, and so is not compiled."""


def compile_programs(
    config: TrainConfig, model: ModelConfig, mesh: Mesh, decode_mesh: Mesh, lengths: Lengths, names: tuple[str, ...]
) -> dict[str, Program]:
    """The run's `update` on `mesh`, `begin` and `finish` (see `sampling`) on `decode_mesh`, as far as named, in this
    order."""
    model = dataclasses.replace(model, compute_dtype=config.compute_dtype)
    settings = update_settings(config, model, lengths.completion)
    kept = kept_arrays(config, model, mesh, decode_mesh)
    sampled = kept.sampled
    shards, samples = batch_shards(decode_mesh), config.samples_per_prompt
    request = request_arrays(config, decode_mesh, lengths)
    sampling = SamplingSettings(model, samples, lengths.completion, shards, config.slots, config.rollout, decode_mesh)
    beside = kept.bytes_beside_sampling()
    completions = config.prompts_per_step * samples // shards
    turns = math.ceil(completions / sampling.width(completions)) * (lengths.completion - 1)
    compiled = {}
    if "update" in names:
        given = request_arrays(config, mesh, lengths)
        arguments = (kept.state, batch_arrays(config, mesh, lengths), given.prefix, given.temperature, kept.reference)
        compiled["update"] = _compiled(lambda: update.lower(*arguments, settings=settings, mesh=mesh), 0, 0)
    if "begin" in names:
        compiled["begin"] = _compiled(lambda: begin.lower(sampled, request, settings=sampling), beside, turns)
    if "finish" in names:
        begun = _begun(sampled, request, sampling, decode_mesh)
        compiled["finish"] = _compiled(lambda: finish.lower(sampled, request, *begun, settings=sampling), beside, 0)
    return compiled


def _begun(params: Any, request: Request, settings: SamplingSettings, mesh: Mesh) -> tuple:
    """What `begin` gives `finish`, by shares of the batch where it has them."""
    shapes = jax.eval_shape(lambda p, r: begin(p, r, settings=settings), params, request)
    rows = settings.rows

    def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shared = x.ndim and x.shape[0] == rows
        return with_sharding(x, named_sharding(mesh, ("batch",) if shared else ()))

    return jax.tree.map(placed, shapes)


def _compiled(lower: Callable[[], Any], resident: float, turns: int) -> Program:
    started = time.perf_counter()
    lowered = lower()
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError as error:
            memory = {"program": _needed(str(error)), "resident": resident}
            if memory["program"] is None:
                raise
            return Program(time.perf_counter() - started, memory | {"total": sum(memory.values())}, None)
        # The compiler's own text of it: jaxlib, which JAX asks, cannot read all that another version of XLA writes.
        (text,) = (file.read_text() for file in Path(folder).glob("*.after_optimizations.txt"))
    seconds = time.perf_counter() - started
    analysis = program.memory_analysis()
    memory = {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "code": analysis.generated_code_size_in_bytes,
        "resident": resident,
    }
    memory["total"] = sum(memory.values())
    # Of loops that end when all completions have, the first runs as long as if all were of full length.
    return Program(seconds, memory, Reader(text, [turns, *[0] * 32]).cost())


def _needed(error: str) -> float | None:
    """Bytes that the compiler says a program needs where it refuses one for its memory; None for other errors."""
    used = re.search(r"Used ([\d.]+)([KMG]) of|required for [\w ]+ \(([\d.]+)([KMG])\) exceeds", error)
    if used is None or "RESOURCE_EXHAUSTED" not in error:
        return None
    number, unit = used[1] or used[3], used[2] or used[4]
    return float(number) * 2.0 ** {"K": 10, "M": 20, "G": 30}[unit]


def least_collective_bytes(config: TrainConfig, model: ModelConfig, mesh: Mesh, lengths: Lengths) -> float:
    """What a device must send in an update, in the compute type.

    Every weight that lies split over fsdp is gathered for the forward and again for the backward pass of each
    micro-batch, and the gradient of what is trained is reduced and scattered. A data axis adds an all-reduce of each
    device's share of the gradient, a tensor axis two all-reduces of all activations in each layer and direction.
    """
    size = jnp.dtype(config.compute_dtype).itemsize
    data, fsdp, tensor = (mesh.shape[axis] for axis in ("data", "fsdp", "tensor"))
    weights = sum(x.size for x in jax.tree.leaves(abstract_params(model))) * size / tensor
    trained = weights
    if config.lora:
        trained = sum(x.size for x in jax.tree.leaves(abstract_adapters(model, config.lora))) * size / tensor
    groups = config.prompts_per_step // batch_shards(mesh)
    tokens = groups * (lengths.prompt + config.samples_per_prompt * (lengths.completion - 1))
    tokens += config.micro_batches * lengths.prefix
    activations = 4 * model.num_layers * tokens * model.hidden_size * size
    return (
        config.micro_batches * (fsdp - 1) / fsdp * (2 * weights + trained)
        + 2 * (data - 1) / data * trained / fsdp
        + 2 * (tensor - 1) / tensor * activations
    )
