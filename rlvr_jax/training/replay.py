"""One update that a run left out, run again.

    loss, metrics, gradients = replay(Path("runs/arithmetic-sign-seed0"), step=50)

With `jax.config.update("jax_debug_nans", True)` before it, JAX stops at the operation that made the first NaN.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.models import abstract_params, load_params, open_model, param_shardings
from rlvr_jax.models.lora import abstract_adapters, adapter_shardings
from rlvr_jax.records import Batch, Prompts, Rollouts
from rlvr_jax.sharding import batch_shards, make_mesh, named_sharding
from rlvr_jax.training.restore import read_config
from rlvr_jax.training.setup import update_settings
from rlvr_jax.training.skipped import named_leaves
from rlvr_jax.training.update import Metrics, loss_and_gradients

_compiled = jax.jit(loss_and_gradients, static_argnames=("settings", "rows", "mesh"))


def replay(run_folder: Path, step: int, mesh: Mesh | None = None) -> tuple[Float[Array, ""], Metrics, PyTree]:
    """Loss, metrics and gradient of an update that was skipped, from its own parameters, batch and settings.

    `mesh`: default is the run's. Raises UserError when the run skipped no update in that step.
    """
    folder = run_folder / "skipped"
    file = folder / f"step_{step:06d}.npz"
    if not file.is_file():
        steps = ", ".join(str(int(path.stem.removeprefix("step_"))) for path in sorted(folder.glob("step_*.npz")))
        raise UserError(
            f"step is {step}: accepted are the steps of {str(run_folder)!r} that skipped: {steps or 'none'}"
        )
    config = read_config(run_folder)
    mesh = make_mesh(config.mesh) if mesh is None else mesh
    model = open_model(config.model)
    sizes = dataclasses.replace(model.config, compute_dtype=config.compute_dtype)
    if config.lora:
        like, shardings = abstract_adapters(sizes, config.lora), adapter_shardings(sizes, config.lora, mesh)
    else:
        like, shardings = abstract_params(sizes), param_shardings(sizes, mesh)

    # Of the first of the row that this step belongs to.
    of_row = max(path for path in folder.glob("params_*.npz") if path.stem <= f"params_{step:06d}")
    with np.load(of_row) as arrays:
        leaves = [arrays[name] for name in named_leaves(like)]
        params = jax.device_put(jax.tree.unflatten(jax.tree.structure(like), leaves), shardings)
    with np.load(file) as arrays:
        batch = jax.device_put(_batch(dict(arrays)), named_sharding(mesh, ("batch",)))
        prefix, temperature = (jax.device_put(arrays[name], named_sharding(mesh)) for name in ("prefix", "temperature"))
    needs_reference = config.kl_coefficient or config.lora
    reference = load_params(model.folder, sizes, mesh) if needs_reference else None
    settings = update_settings(config, sizes, batch.loss_mask.shape[-1])
    return _compiled(
        params, batch, prefix, temperature, reference, settings=settings, rows=batch_shards(mesh), mesh=mesh
    )


def _batch(arrays: dict[str, np.ndarray]) -> Batch:
    def fields(prefix: str) -> dict[str, np.ndarray]:
        names = [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]
        return {name: arrays[prefix + name] for name in names if "." not in name}

    parts = {"prompts": Prompts(**fields("batch.prompts.")), "rollouts": Rollouts(**fields("batch.rollouts."))}
    return Batch(**parts, **fields("batch."))
