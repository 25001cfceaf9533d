"""Orbax checkpoints: asynchronous, atomic, the newest few kept."""

import dataclasses
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from jaxtyping import PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.training.state import TrainState


def _all_but_params(state: TrainState) -> dict[str, Any]:
    """Fields by name; one that holds nothing is left out, since a checkpoint item cannot be None."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in fields.items() if name != "params" and value is not None}


class Checkpoints:
    """The checkpoints of one run folder. Parameters are an item of their own, so that they can be read alone."""

    def __init__(self, run_folder: Path, keep: int = 2):
        self.folder = (run_folder / "checkpoints").resolve()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until what was asked to be saved is on disk."""
        self._manager.close()

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, state: TrainState) -> None:
        """Copies the state to host memory and returns; writing goes on in the background."""
        save = ocp.args.StandardSave
        items = ocp.args.Composite(params=save(state.params), rest=save(_all_but_params(state)))
        self._manager.save(int(state.step), args=items)

    def restore(self, like: TrainState) -> TrainState:
        """The latest state, laid out as the abstract state `like`. Raises UserError when there is none."""
        restore = ocp.args.StandardRestore
        items = ocp.args.Composite(params=restore(like.params), rest=restore(_all_but_params(like)))
        restored = self._manager.restore(self._latest(), args=items)
        return TrainState(params=restored["params"], **restored["rest"])

    def restore_params(self, like: PyTree) -> PyTree:
        """The latest parameters alone, laid out as the abstract parameters `like`."""
        items = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        return self._manager.restore(self._latest(), args=items)["params"]

    def _latest(self) -> Any:
        if self.latest_step is None:
            raise UserError(f"{self.folder} holds no finished checkpoint")
        return self.latest_step
