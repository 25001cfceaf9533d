"""Updates that were left out because their loss or gradient was not finite: counted, and kept to be run again.

A skipped update leaves the state as it was, so a row of them meets the same parameters, which are kept once.
"""

import os
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from rlvr_jax.errors import RunStopped
from rlvr_jax.training.run_folder import read_jsonl


class SkippedUpdates:
    """Of one run: files in its folder, and how many steps in a row had one."""

    def __init__(self, run_folder: Path):
        """Goes on counting where the run's metrics end."""
        self._folder = run_folder / "skipped"
        self.in_a_row = 0
        for line in read_jsonl(run_folder / "metrics.jsonl"):
            self.in_a_row = self.in_a_row + 1 if line.get("skipped") else 0

    def count(self, step: int, skipped: float, params: PyTree, inputs: PyTree) -> None:
        """After each step, with the parameters after it and the update's other inputs (see `replay`).

        Raises RunStopped where they cannot be written.
        """
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if skipped:
            self._folder.mkdir(exist_ok=True)
            if self.in_a_row == 1:
                _write(self._folder / f"params_{step:06d}.npz", params)
            _write(self._folder / f"step_{step:06d}.npz", inputs)


def named_leaves(tree: PyTree) -> dict[str, jax.Array | np.ndarray | jax.ShapeDtypeStruct]:
    """Leaves by their place: `batch.rollouts.tokens`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _write(file: Path, tree: PyTree) -> None:
    """Aside, then renamed, by one process of several."""
    arrays = {name: _on_host(leaf) for name, leaf in named_leaves(tree).items()}
    if jax.process_index() == 0:
        scratch = file.with_suffix(".part")
        try:
            with scratch.open("wb") as stream:
                np.savez(stream, **arrays)
            os.replace(scratch, file)
        except OSError as error:
            raise RunStopped(f"{str(file)!r} could not be written: {error.strerror}") from error


def _on_host(x: jax.Array | np.ndarray) -> np.ndarray:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
