"""Orbax checkpoints: asynchronous, atomic, the newest few kept."""

from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from jaxtyping import PyTree

from rlvr_jax.errors import UserError
from rlvr_jax.training.state import TrainState


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
        rest = {"optimizer": state.optimizer, "step": state.step, "seed": state.seed, "cursor": state.cursor}
        items = ocp.args.Composite(params=ocp.args.StandardSave(state.params), rest=ocp.args.StandardSave(rest))
        self._manager.save(int(state.step), args=items)

    def restore(self, like: TrainState) -> TrainState:
        """The latest state, laid out as the abstract state `like`. Raises UserError when there is none."""
        rest = {"optimizer": like.optimizer, "step": like.step, "seed": like.seed, "cursor": like.cursor}
        items = ocp.args.Composite(params=ocp.args.StandardRestore(like.params), rest=ocp.args.StandardRestore(rest))
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
