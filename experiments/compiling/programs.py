"""A run's programs as they are compiled for devices that need not exist: arguments are shapes with shardings."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments.compiling.costs import Cost, Reader
from rlvr_jax.models import ModelConfig, abstract_params, param_shardings
from rlvr_jax.models.lora import abstract_adapters
from rlvr_jax.records import Batch, Prompts, Rollouts
from rlvr_jax.sampling import Request, SamplingSettings, begin, finish
from rlvr_jax.sharding import batch_shards, named_sharding
from rlvr_jax.training import TrainConfig, make_optimizer, update
from rlvr_jax.training.setup import update_settings
from rlvr_jax.training.state import abstract_state, policy_params


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens, of which a run learns the first two from its data."""

    prefix: int
    prompt: int
    completion: int


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
    shardings = param_shardings(model, mesh)
    params = jax.tree.map(_with_sharding, abstract_params(model), shardings)
    trained = abstract_adapters(model, config.lora) if config.lora else abstract_params(model)
    start = config.resolved_objective.start
    memory = None if start is None else jax.eval_shape(start)
    state = abstract_state(model, make_optimizer(settings.optimizer), trained, mesh, memory, config.lora)
    reference = params if config.kl_coefficient or config.lora else None
    sampled = jax.tree.map(
        _with_sharding,
        jax.eval_shape(lambda t, r: policy_params(t, r, config.lora, config.compute_dtype), trained, reference),
        param_shardings(model, decode_mesh),
    )
    shards, samples = batch_shards(decode_mesh), config.samples_per_prompt
    request = _request(config, decode_mesh, lengths)
    sampling = SamplingSettings(model, samples, lengths.completion, shards, config.slots, config.rollout, decode_mesh)
    # While it samples, a run also keeps what it trains; with adapters, or on a mesh of its own, the parameters sampled
    # from are a copy.
    is_copy = config.lora or decode_mesh != mesh
    kept = _device_bytes((state, reference)) - (0 if is_copy else _device_bytes(params))
    completions = config.prompts_per_step * samples // shards
    turns = math.ceil(completions / sampling.width(completions)) * (lengths.completion - 1)
    compiled = {}
    if "update" in names:
        given = _request(config, mesh, lengths)
        arguments = (state, _batch(config, mesh, lengths), given.prefix, given.temperature, reference)
        compiled["update"] = _compiled(lambda: update.lower(*arguments, settings=settings, mesh=mesh), 0, 0)
    if "begin" in names:
        compiled["begin"] = _compiled(lambda: begin.lower(sampled, request, settings=sampling), kept, turns)
    if "finish" in names:
        begun = _begun(sampled, request, sampling, decode_mesh)
        compiled["finish"] = _compiled(lambda: finish.lower(sampled, request, *begun, settings=sampling), kept, 0)
    return compiled


def _with_sharding(x: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _batch(config: TrainConfig, mesh: Mesh, lengths: Lengths) -> Batch:
    groups = (config.prompts_per_step, config.samples_per_prompt)
    rows = named_sharding(mesh, ("batch",))

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    prompts = _record(
        Prompts,
        tokens=array(jnp.int32, groups[0], lengths.prompt),
        mask=array(jnp.bool, groups[0], lengths.prompt),
        ids=array(jnp.uint32, groups[0]),
    )
    per_token = array(jnp.float32, *groups, lengths.completion)
    mask = array(jnp.bool, *groups, lengths.completion)
    rollouts = _record(
        Rollouts,
        tokens=array(jnp.int32, *groups, lengths.completion),
        mask=mask,
        log_probabilities=per_token,
        policy_log_probabilities=per_token,
        entropies=per_token,
        truncated=array(jnp.bool, *groups),
    )
    several = config.resolved_objective.loss.importance_cap and config.updates_per_rollout > 1
    return _record(
        Batch,
        prompts=prompts,
        rollouts=rollouts,
        rewards=array(jnp.float32, *groups),
        advantages=per_token,
        loss_mask=mask,
        old_log_probabilities=per_token if several else None,
    )


def _record(kind: type, **fields: Any) -> Any:
    """A record of shapes, which its constructor would refuse where types are checked."""
    names = [field.name for field in dataclasses.fields(kind)]
    none = object.__new__(kind)
    for name in names:
        object.__setattr__(none, name, fields[name])
    return none


def _request(config: TrainConfig, mesh: Mesh, lengths: Lengths) -> Request:
    everywhere = named_sharding(mesh)

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

    return Request(
        prefix=array(jnp.int32, lengths.prefix),
        prompts=_batch(config, mesh, lengths).prompts,
        stop_tokens=array(jnp.int32, 2),
        seed=array(jnp.uint32),
        step=array(jnp.int32),
        temperature=array(jnp.float32),
    )


def _begun(params: Any, request: Request, settings: SamplingSettings, mesh: Mesh) -> tuple:
    """What `begin` gives `finish`, by shares of the batch where it has them."""
    shapes = jax.eval_shape(lambda p, r: begin(p, r, settings=settings), params, request)
    rows = settings.rows

    def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shared = x.ndim and x.shape[0] == rows
        return _with_sharding(x, named_sharding(mesh, ("batch",) if shared else ()))

    return jax.tree.map(placed, shapes)


def _compiled(lower: Callable[[], Any], resident: float, turns: int) -> Program:
    started = time.perf_counter()
    lowered = lower()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        used = re.search(r"Used ([\d.]+)([KMG]) of", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or used is None:
            raise
        total = float(used[1]) * 2.0 ** {"K": 10, "M": 20, "G": 30}[used[2]]
        memory = {"program": total, "resident": resident, "total": total + resident}
        return Program(time.perf_counter() - started, memory, None)
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
    cost = Reader(program.as_text(), [turns, *[0] * 32]).cost()
    return Program(seconds, memory, cost)


def _device_bytes(tree: Any) -> float:
    """Of one device's shares."""
    return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))


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
