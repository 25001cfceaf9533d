"""What a run needs before its first step: model, task and mesh, what it compiles, its checkpoints, its first state."""

import dataclasses
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Roller
from rlvr_jax.models import Model, ModelConfig, abstract_params, init_adapters, load_params, open_model, param_shardings
from rlvr_jax.models.lora import abstract_adapters
from rlvr_jax.sharding import AnyMesh, MeshShape, batch_shards, make_mesh
from rlvr_jax.tasks import PromptEncoder, Task, make_task
from rlvr_jax.training.checkpoint import Checkpoints
from rlvr_jax.training.config import TrainConfig
from rlvr_jax.training.optimizer import OptimizerSettings, make_optimizer
from rlvr_jax.training.state import (
    TrainState,
    abstract_rollouts,
    abstract_state,
    init_state,
)
from rlvr_jax.training.update import UpdateSettings


@dataclasses.dataclass(frozen=True)
class Setup:
    """What runs can share: model, task and mesh. Weights are read anew by each run."""

    model: Model
    mesh: Mesh
    roller: Roller


def prepare(config: TrainConfig) -> Setup:
    """Checks the configuration against devices, model and data. Raises UserError for what does not fit."""
    mesh = make_mesh(config.mesh)
    decode_mesh = mesh if config.decode_mesh is None else make_mesh(MeshShape(*config.decode_mesh))
    check_shares(config, mesh, decode_mesh)
    model = open_model(config.model)
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, compute_dtype=config.compute_dtype))
    param_shardings(model.config, mesh)
    if config.lora:
        abstract_adapters(model.config, config.lora)
    task = make_task(config.task, config.data, config.prompt_format)
    encoder = PromptEncoder(task, model.tokenizer, _probe(task), config.max_prompt_tokens)
    return Setup(model, mesh, Roller(model, task, encoder, mesh, config.slots, config.stop, decode_mesh))


def check_shares(config: TrainConfig, mesh: AnyMesh, decode_mesh: AnyMesh) -> None:
    """Raises UserError for a batch that the device shares of either mesh cannot split."""
    shards = batch_shards(mesh)
    for name in ("prompts_per_step", "evaluation_batch", "slots"):
        if (getattr(config, name) or 0) % batch_shards(decode_mesh):
            raise UserError(
                f"{name} is {getattr(config, name)}: accepted is a multiple of {batch_shards(decode_mesh)} "
                "(data x fsdp device shares that sample)"
            )
    for name, pieces in (
        ("prompts_per_step", shards * config.micro_batches),
        ("evaluation_batch", shards),
    ):
        if (getattr(config, name) or 0) % pieces:
            raise UserError(
                f"{name} is {getattr(config, name)}: accepted is a multiple of {pieces} "
                f"(data x fsdp = {shards} device shares, micro_batches = {config.micro_batches})"
            )


def _probe(task: Task) -> list[Any]:
    """Rows that show how long prompts get: all of a finite task, a thousand of each stream of a generator."""
    sizes = {split: task.size(split) for split in ("train", "held_out")}
    return [task.row(split, i) for split, size in sizes.items() for i in range(1000 if size is None else size)]


def update_settings(config: TrainConfig, model: ModelConfig, max_new_tokens: int) -> UpdateSettings:
    """What a run with completions of up to so many tokens compiles into its updates."""
    return UpdateSettings(
        model,
        config.resolved_objective.loss,
        optimizer_settings(config),
        micro_batches=config.micro_batches,
        remat=config.remat,
        lora=config.lora,
        fused_attention=config.fused_attention,
        packing=config.packing or (4 if max_new_tokens >= 32 else 1),
    )


_OF_THE_OBJECTIVE = (
    "objective",
    "surrogate",
    "clip_low",
    "clip_high",
    "aggregation",
    "kl_coefficient",
    "kl_estimator",
    "kl_where",
    "overlong_cache",
    "drop_truncated",
    "importance_cap",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
)


def open_checkpoints(config: TrainConfig, model: ModelConfig, run_folder: Path) -> Checkpoints:
    """What they are of: a model of these sizes and an objective; its precision may be another when restored."""
    sizes = {name: value for name, value in dataclasses.asdict(model).items() if name != "compute_dtype"}
    of = sizes | {name: getattr(config, name) for name in _OF_THE_OBJECTIVE}
    return Checkpoints(run_folder, config.keep_checkpoints, folder=config.checkpoint_folder, of=of)


def optimizer_settings(config: TrainConfig) -> OptimizerSettings:
    """What a run's optimizer is made of."""
    names = [field.name for field in dataclasses.fields(OptimizerSettings)]
    return OptimizerSettings(**{name: getattr(config, name) for name in names})


def first_state(config: TrainConfig, setup: Setup, checkpoints: Checkpoints) -> TrainState:
    """From the latest checkpoint, or from the model's own weights."""
    optimizer = make_optimizer(optimizer_settings(config))
    model, mesh, lora = setup.model, setup.mesh, config.lora
    start = config.resolved_objective.start
    memory = None if start is None else start()
    if checkpoints.steps:
        shapes = abstract_adapters(model.config, lora) if lora else abstract_params(model.config)
        max_new_tokens = config.max_new_tokens or setup.roller.task.max_new_tokens
        rollouts = abstract_rollouts(config.prompts_per_step, config.samples_per_prompt, max_new_tokens, mesh)
        return checkpoints.restore(abstract_state(model.config, optimizer, shapes, mesh, memory, lora), rollouts)
    if lora:
        params = init_adapters(model.config, lora, config.seed)
    else:
        params = load_params(model.folder, model.config, mesh)
    return init_state(
        params, config.seed, config=model.config, optimizer=optimizer, mesh=mesh, objective=memory, lora=lora
    )
