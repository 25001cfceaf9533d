"""What a finished or unfinished run has trained, from its folder."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.models import LoraSettings, Model, ModelConfig, abstract_params, load_params, param_shardings
from rlvr_jax.models.lora import abstract_adapters, adapter_shardings
from rlvr_jax.training.checkpoint import Checkpoints, checkpoint_folder
from rlvr_jax.training.config import TrainConfig
from rlvr_jax.training.run_folder import with_defaults
from rlvr_jax.training.state import policy_params


def run_config(path: Path) -> dict[str, Any]:
    """The configuration that a run folder was made with. Raises UserError when it is not a run folder."""
    file = path / "run.json"
    if not file.is_file():
        raise UserError(f"{str(path)!r} is not a run folder: it has no run.json")
    return json.loads(file.read_text())


def read_config(path: Path) -> TrainConfig:
    """As it was given to the run; what an earlier version did not know has its default. Raises as `run_config`."""
    default = TrainConfig()
    values = with_defaults(run_config(path))
    for name, value in values.items():
        known = getattr(default, name)
        if dataclasses.is_dataclass(known):
            values[name] = type(known)(**value)
        elif isinstance(known, tuple):
            values[name] = tuple(value)
    if values["decode_mesh"] is not None:
        values["decode_mesh"] = tuple(values["decode_mesh"])
    output = values.pop("output")
    return TrainConfig(**values, output=None if output is None else Path(output))


def restore_trained(path: Path, config: ModelConfig, mesh: Mesh) -> tuple[PyTree, LoraSettings | None, int]:
    """What the run has trained, from its latest checkpoint, and the step of that; no weights of the model are read.

    All parameters and `None`, or adapters and their settings. Raises UserError when the folder holds no run or no
    checkpoint.
    """
    known = run_config(path)
    lora = None
    if known.get("lora_rank"):
        lora = LoraSettings(known["lora_rank"], known["lora_alpha"], tuple(known["lora_targets"]))
        shapes, shardings = abstract_adapters(config, lora), adapter_shardings(config, lora, mesh)
    else:
        shapes, shardings = abstract_params(config), param_shardings(config, mesh)
    elsewhere = known.get("checkpoint_folder")
    if not checkpoint_folder(path, elsewhere).is_dir():
        raise UserError(f"{str(path)!r} holds no checkpoints")
    like = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)
    with Checkpoints(path, folder=elsewhere, read_only=True) as checkpoints:
        return checkpoints.restore_params(like), lora, checkpoints.latest_step


def restore_policy(path: Path, model: Model, mesh: Mesh) -> tuple[PyTree, int]:
    """The run's policy and its step; adapters are joined with the weights of `model`. Raises as `restore_trained`."""
    trained, lora, step = restore_trained(path, model.config, mesh)
    base = load_params(model.folder, model.config, mesh) if lora else None
    return policy_params(trained, base, lora), step
