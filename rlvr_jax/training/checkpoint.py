"""Orbax checkpoints: asynchronous, atomic, checked before use; the newest few are kept, and the best one.

A checkpoint is finished when its manifest is there (`manifest`). Only then are older ones removed, so at any moment
there is a finished one on disk once there was one.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from rlvr_jax.errors import RunStopped, UserError
from rlvr_jax.sharding import agreed
from rlvr_jax.training import manifest
from rlvr_jax.training.disk import require_room, require_writable
from rlvr_jax.training.manifest import Damaged
from rlvr_jax.training.state import TrainState

_MARK = {"manifest": manifest.NAME}
"""In Orbax's own metadata: a checkpoint of today's form, unfinished as long as it has no manifest."""


def _all_but_params(state: TrainState) -> dict[str, Any]:
    """Fields by name; one that holds nothing is left out, since a checkpoint item cannot be None."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in fields.items() if name != "params" and value is not None}


def kept_steps(steps: Iterable[int], accuracies: Mapping[int, float], newest: int) -> set[int]:
    """The `newest` last of `steps`, and the one with the highest of the known accuracies (of equals the last)."""
    steps = sorted(steps)
    measured = [step for step in steps if step in accuracies]
    best = max(measured, key=lambda step: (accuracies[step], step), default=None)
    return {*steps[-newest:], *([] if best is None else [best])}


def checkpoint_folder(run_folder: Path, elsewhere: str | None) -> epath.Path:
    """`checkpoints` of the run folder, or the folder `elsewhere`, which may be in a bucket (gs://...)."""
    return epath.Path(elsewhere) if elsewhere else epath.Path((run_folder / "checkpoints").resolve())


class Checkpoints:
    """The checkpoints of one run. Parameters are an item of their own, so that they can be read alone."""

    def __init__(
        self,
        run_folder: Path,
        keep: int = 2,
        *,
        folder: str | None = None,
        of: Mapping[str, Any] | None = None,
        read_only: bool = False,
    ):
        """In `checkpoint_folder(run_folder, folder)`. `keep` of the newest stay, and the best one.

        `of`, JSON by name, says what is saved, and what a checkpoint must be of to be restored. `read_only`: nothing
        in the folder is changed, not even what a killed run left unfinished; else UserError where it cannot be.
        """
        self.folder = checkpoint_folder(run_folder, folder)
        if not read_only:
            with agreed():
                require_writable(self.folder)
            self._remove_unfinished()
        self._keep = keep
        self._of = json.loads(json.dumps(dict(of or {})))
        handlers = {name: ocp.PyTreeCheckpointHandler(use_compression=False) for name in ("params", "rest")}
        # Weights hardly compress, and doing it took four times as long as writing them.
        options = ocp.CheckpointManagerOptions(
            create=not read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=True,
        )
        self._manager = ocp.CheckpointManager(self.folder, item_handlers=handlers, options=options)
        self._pool = ThreadPoolExecutor(1, "manifest")
        self._writing: tuple[int, Future] | None = None
        self._whole: set[int] = set()
        self._damaged: dict[int, Damaged] = {}
        self._accuracies: dict[int, float | None] = {}

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until what was asked to be saved is on disk. Raises RunStopped where it cannot be."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            self._manager.close()

    @property
    def steps(self) -> list[int]:
        """Of all checkpoints that are there, in order, whole or not."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    @property
    def latest_step(self) -> int | None:
        """Of the newest checkpoint that is whole; what is wrong with newer ones is said on standard error, once."""
        self.wait()
        found = -1
        if jax.process_index() == 0:
            found = next((step for step in reversed(self.steps) if self._is_whole(step)), -1)
        found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        if found < 0:
            return None
        self._whole.add(found)
        return found

    def require_room(self, state: TrainState, saves: int) -> None:
        """Raises UserError where so many more checkpoints of such a state have no room on a local disk.

        At most there are the newest, the best and one that is being written.
        """
        require_room(self.folder, state, min(len(self.steps) + saves, self._keep + 2))

    def save(self, state: TrainState, accuracy: float | None = None) -> None:
        """Copies the state to host memory and returns; writing goes on in the background. A saved step is left alone.

        `accuracy` of the state on held-out questions, where it is known. Raises RunStopped where this or the checkpoint
        before could not be written.
        """
        self.wait()
        step = int(state.step)
        if step in self._whole:
            return
        save = ocp.args.PyTreeSave
        items = ocp.args.Composite(params=save(state.params), rest=save(_all_but_params(state)))
        with self._stopping_the_run(step):
            self._manager.save(step, args=items, custom_metadata=_MARK)
        self._writing = step, self._pool.submit(self._finish, step, accuracy)

    def wait(self) -> None:
        """Until the checkpoint that is being written is finished. Raises RunStopped where it cannot be."""
        if self._writing is None:
            return
        (step, finished), self._writing = self._writing, None
        with self._stopping_the_run(step):
            finished.result()

    def restore(self, like: TrainState, ahead: PyTree = None) -> TrainState:
        """The latest whole state, laid out as the abstract state `like`: on any mesh, of any number of devices.

        `ahead`, abstract too, is for the rollouts that a checkpoint may hold (`TrainState.ahead`). Later checkpoints,
        which are damaged, are removed: the run comes to their steps again. Raises UserError when there is none, and
        with the first difference when it is of something else.
        """
        step = self._latest()
        rest = _all_but_params(like)
        if "ahead" in self._manager.item_metadata(step)["rest"].tree:
            rest["ahead"] = ahead
        self._require_same_run(step)
        restored = self._restored(step, params=like.params, rest=rest)
        for later in [other for other in self._manager.all_steps() if other > step]:
            self._manager.delete(later)
        return TrainState(params=restored["params"], **restored["rest"])

    def restore_params(self, like: PyTree) -> PyTree:
        """The latest whole parameters alone, laid out as the abstract parameters `like`. Raises as `restore`."""
        return self._restored(self._latest(), params=like)["params"]

    def _restored(self, step: int, **items: PyTree) -> Any:
        arguments = {}
        for name, like in items.items():
            self._require_same_arrays(step, name, like)
            how = ocp.checkpoint_utils.construct_restore_args(like)
            arguments[name] = ocp.args.PyTreeRestore(like, restore_args=how)
        return self._manager.restore(step, args=ocp.args.Composite(**arguments))

    def _latest(self) -> int:
        if (step := self.latest_step) is not None:
            return step
        found = "".join(f"; that of step {step} is damaged: {damage}" for step, damage in self._damaged.items())
        raise UserError(f"{self.folder} holds no finished checkpoint{found}")

    def _require_same_run(self, step: int) -> None:
        """Raises UserError with the first thing that the checkpoint is not of."""
        try:
            saved = manifest.read_manifest(self.folder / str(step))["of"]
        except FileNotFoundError:
            return
        for name, value in self._of.items():
            if name in saved and saved[name] != value:
                raise UserError(
                    f"{name} is {value!r}, but the checkpoint of step {step} in {self.folder} has {saved[name]!r}: "
                    "accepted is the same value"
                )

    def _require_same_arrays(self, step: int, item: str, like: PyTree) -> None:
        """Raises UserError with the first array that only one of the two has, or that has another shape."""
        saved = {leaf.name: leaf.shape for leaf in jax.tree.leaves(self._manager.item_metadata(step)[item].tree)}
        wanted = {name: leaf.shape for name, leaf in ocp.tree.to_flat_dict(like, sep=".").items()}
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                theirs, ours = (f"shape {of[name]}" if name in of else "no such array" for of in (saved, wanted))
                raise UserError(
                    f"the checkpoint of step {step} in {self.folder} is of another model or objective: "
                    f"{name} has {theirs} in it and {ours} in this run"
                )

    def _is_whole(self, step: int) -> bool:
        if step not in self._whole | self._damaged.keys():
            folder = self.folder / str(step)
            try:
                self._check(step, folder)
                self._whole.add(step)
            except Damaged as damage:
                self._damaged[step] = damage
                print(f"the checkpoint of step {step} in {self.folder} is left out: {damage}", file=sys.stderr)
        return step in self._whole

    def _check(self, step: int, folder: epath.Path) -> None:
        """Raises Damaged."""
        try:
            written = manifest.read_manifest(folder)
        except FileNotFoundError:
            if self._is_unfinished(step):
                raise Damaged("it was not finished") from None
            print(
                f"the checkpoint of step {step} in {self.folder} is older than manifests: not checked", file=sys.stderr
            )
            return
        manifest.verify(folder, written)

    def _is_unfinished(self, step: int) -> bool:
        """No manifest, and none of the checkpoints that were written before there were manifests."""
        folder = self.folder / str(step)
        if (folder / manifest.NAME).exists():
            return False
        try:
            return json.loads((folder / "_CHECKPOINT_METADATA").read_text())["custom_metadata"] == _MARK
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return True

    def _remove_unfinished(self) -> None:
        """What a run that was killed was about to finish, or to remove; Orbax does the same with its own remains."""
        if jax.process_index() == 0:
            for step in filter(self._is_unfinished, self.steps):
                print(f"the checkpoint of step {step} in {self.folder} was not finished: removed", file=sys.stderr)
                (self.folder / str(step)).rmtree()
        multihost_utils.sync_global_devices("unfinished checkpoints are removed")

    def _finish(self, step: int, accuracy: float | None) -> None:
        """In the background: once Orbax has put the checkpoint in its place."""
        self._manager.wait_until_finished()
        if jax.process_index() == 0:
            manifest.write_manifest(self.folder / str(step), {"of": self._of, "held_out_accuracy": accuracy})
            self._remove_old()
        self._whole.add(step)

    def _remove_old(self) -> None:
        steps = self.steps
        for step in steps:
            if step not in self._accuracies:
                self._accuracies[step] = self._accuracy(step)
        known = {step: value for step, value in self._accuracies.items() if value is not None and step in steps}
        for step in set(steps) - kept_steps(steps, known, self._keep):
            # Its manifest first: if the rest is not removed to the end, it is not taken for a checkpoint.
            (self.folder / str(step) / manifest.NAME).unlink(missing_ok=True)
            (self.folder / str(step)).rmtree()

    def _accuracy(self, step: int) -> float | None:
        try:
            return manifest.read_manifest(self.folder / str(step))["held_out_accuracy"]
        except (FileNotFoundError, Damaged):
            return None

    @contextlib.contextmanager
    def _stopping_the_run(self, step: int) -> Iterator[None]:
        """Whatever keeps Orbax from writing, it is the end of the run, and those before are not touched by it."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Exception):
                # It would raise the same again when it is closed.
                self._manager.wait_until_finished()
            reason = str(error).partition("\n")[0]
            finished = [old for old in self.steps if old != step and not self._is_unfinished(old)]
            raise RunStopped(
                f"the checkpoint of step {step} could not be written to {self.folder}: {reason}; "
                + (f"that of step {finished[-1]} is untouched" if finished else "there is none before it")
            ) from error
