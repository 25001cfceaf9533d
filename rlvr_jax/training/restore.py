"""What a finished or unfinished run has trained, from its folder."""

import json
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.models import LoraSettings, Model, ModelConfig, abstract_params, load_params, param_shardings
from rlvr_jax.models.lora import abstract_adapters, adapter_shardings
from rlvr_jax.training.checkpoint import Checkpoints
from rlvr_jax.training.state import policy_params


def run_config(path: Path) -> dict[str, Any]:
    """The configuration that a run folder was made with. Raises UserError when it is not a run folder."""
    file = path / "run.json"
    if not file.is_file():
        raise UserError(f"{str(path)!r} is not a run folder: it has no run.json")
    return json.loads(file.read_text())


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
    if not (path / "checkpoints").is_dir():
        raise UserError(f"{str(path)!r} holds no checkpoints")
    like = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)
    with Checkpoints(path) as checkpoints:
        return checkpoints.restore_params(like), lora, checkpoints.latest_step


def restore_policy(path: Path, model: Model, mesh: Mesh) -> tuple[PyTree, int]:
    """The run's policy and its step; adapters are joined with the weights of `model`. Raises as `restore_trained`."""
    trained, lora, step = restore_trained(path, model.config, mesh)
    base = load_params(model.folder, model.config, mesh) if lora else None
    return policy_params(trained, base, lora), step
