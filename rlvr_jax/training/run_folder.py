"""What a run leaves on disk, each file written so that a kill at any moment leaves a readable one.

run.json            the configuration
metrics.jsonl       one line a step; the same command gives the same bytes
timings.jsonl       one line a step: seconds, tokens per second, compilations
completions/        one Parquet file a step: what was asked, sampled and judged. Of several hosts each writes its own:
                    gathering all texts at every step would take time, and the memory of one host
evaluations/        one JSON file an evaluation: the verdict on every held-out question
checkpoints/        Orbax
skipped/            the batches of updates that were left out, and the parameters they met (see `skipped`)
tensorboard/        the metrics again, for TensorBoard
wandb/              the metrics again, where --wandb names a project

With several hosts the folder must be one that all of them see; all else is written by the first.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from rlvr_jax.errors import RunStopped, UserError
from rlvr_jax.evaluation import Evaluation, GradedRollouts
from rlvr_jax.evaluation.folder import write_completions
from rlvr_jax.sharding import agreed, is_first_host
from rlvr_jax.training.config import TrainConfig
from rlvr_jax.training.tensorboard import ScalarWriter
from rlvr_jax.training.weights_and_biases import WeightsAndBiases, require_library

# A resumed run may differ in how far it goes, where it is kept and on which devices; in nothing else that shapes the
# result. On another mesh sums are rounded in another order.
_MAY_DIFFER = {
    "steps",
    "output",
    "keep_checkpoints",
    "checkpoint_every",
    "mesh",
    "decode_mesh",
    "max_skipped_in_a_row",
    "wandb",
}


def write_json(file: Path, value: Any) -> None:
    """Aside, then renamed: the file is whole or absent."""
    scratch = file.with_name(f".{file.name}.part")
    scratch.write_text(json.dumps(value, indent=2, default=str))
    os.replace(scratch, file)


def read_jsonl(file: Path) -> list[dict[str, Any]]:
    """All whole lines; a last line that a kill cut off is left out."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


class RunFolder:
    """One run's folder."""

    def __init__(self, config: TrainConfig, *, resume: bool):
        """Makes the folder, or takes up an earlier one of the same configuration when `resume` is set.

        Raises UserError when the folder holds another run, or one that `resume` does not allow to continue.
        """
        self.path = config.folder
        self._project = config.wandb
        self._writers: dict[str, ScalarWriter | WeightsAndBiases] = {}
        described = _described(config)
        # Nobody writes before all have looked, and nobody goes on where one cannot write.
        with agreed():
            if config.wandb is not None:
                require_library(config.wandb)
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"output is {str(self.path)!r}: a file is there, accepted is a new folder")
            if self.path.is_dir() and any(self.path.iterdir()):
                self._check_same(described, resume)
        with agreed():
            try:
                (self.path / "completions").mkdir(parents=True, exist_ok=True)
                if is_first_host():
                    write_json(self.path / "run.json", described)
            except OSError as error:
                raise UserError(
                    f"output is {str(self.path)!r}: {error.strerror or error}; "
                    "accepted is a folder that can be written to"
                ) from error

    def _check_same(self, described: Mapping[str, Any], resume: bool) -> None:
        file = self.path / "run.json"
        if not file.is_file():
            raise UserError(
                f"output is {str(self.path)!r}: the folder is not empty and holds no run; accepted is a new folder"
            )
        if not resume:
            raise UserError(
                f"output is {str(self.path)!r}: the folder holds another run; "
                "accepted are --resume, to continue it, or another --output"
            )
        # What a run of an earlier version did not know it did by today's default.
        earlier = with_defaults(json.loads(file.read_text()))
        # With staleness, the steps after checkpoints are sampled from a newer policy than the others.
        may_differ = _MAY_DIFFER - {"checkpoint_every"} if described["staleness"] else _MAY_DIFFER
        for name, value in described.items():
            if name not in may_differ and earlier.get(name) != value:
                raise UserError(
                    f"{name} is {value!r}, but the run in {str(self.path)!r} has {earlier.get(name)!r}: "
                    "accepted is the same value"
                )

    def rewind(self, step: int) -> None:
        """Forgets what lies after `step`: the run goes on from the checkpoint of that step; opens its logs."""
        # A refusal by Weights & Biases is the first host's alone, and ends all.
        with agreed():
            if is_first_host():
                self._rewind(step)

    def _rewind(self, step: int) -> None:
        for name in ("metrics.jsonl", "timings.jsonl"):
            file = self.path / name
            if file.is_file():
                kept = [line for line in read_jsonl(file) if line["step"] <= step]
                scratch = file.with_suffix(".part")
                scratch.write_text("".join(json.dumps(line) + "\n" for line in kept))
                os.replace(scratch, file)
        for folder in ("completions", "evaluations", "skipped"):
            for file in (self.path / folder).glob("*_*"):
                if int(file.stem.split("_")[1]) > step:
                    file.unlink()
        if step == 0:
            shutil.rmtree(self.path / "tensorboard", ignore_errors=True)
        with self._writing("tensorboard"):
            self._writers["tensorboard"] = ScalarWriter(self.path / "tensorboard", step + 1)
        if self._project is not None:
            described = json.loads((self.path / "run.json").read_text())
            with self._writing("wandb"):
                self._writers["wandb"] = WeightsAndBiases(
                    self._project, self.path / "wandb", self.path.name, described, resumed=step > 0
                )

    def write_step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        if not is_first_host():
            return
        for name, values in (("metrics.jsonl", metrics), ("timings.jsonl", timings)):
            with self._writing(name), (self.path / name).open("a") as stream:
                stream.write(json.dumps({"step": step, **values}) + "\n")
        self.write_scalars(step, {**metrics, **timings})

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """To TensorBoard, and to Weights & Biases where that is asked for."""
        if not is_first_host():
            return
        assert self._writers, "rewind opens the folder"
        for name, writer in self._writers.items():
            with self._writing(name):
                writer.write(step, values)

    def write_completions(self, step: int, graded: GradedRollouts) -> None:
        """One row a completion, as evaluations keep them, of those that this host verified."""
        rows = [{"step": step, **row} for row in graded.completion_rows(len(graded.outcomes))]
        host = f"_host_{jax.process_index():03d}" if jax.process_count() > 1 else ""
        if rows:
            with self._writing("completions"):
                write_completions(self.path / "completions" / f"step_{step:06d}{host}.parquet", rows)

    def write_evaluation(self, step: int, evaluation: Evaluation) -> None:
        if not is_first_host():
            return
        with self._writing("evaluations"):
            evaluation.save(self.evaluation_file(step))
        self.write_scalars(step, {"held_out_accuracy": evaluation.accuracy.mean})

    def evaluation_file(self, step: int) -> Path:
        return self.path / "evaluations" / f"step_{step:06d}.json"

    def evaluations(self) -> dict[int, Evaluation]:
        """All evaluations by step."""
        files = sorted((self.path / "evaluations").glob("step_*.json"))
        return {int(file.stem.removeprefix("step_")): Evaluation.load(file) for file in files}

    def close(self) -> None:
        for name, writer in self._writers.items():
            with self._writing(name):
                writer.close()

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """A write that fails ends the run; the files are whole, and the checkpoints as they were."""
        try:
            yield
        except OSError as error:
            raise RunStopped(
                f"{what} of the run in {str(self.path)!r} could not be written: {error.strerror or error}"
            ) from error


def _described(config: TrainConfig) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration read from `run.json`, with the defaults of what its version did not know."""
    defaults = _described(TrainConfig())
    whole = {**defaults, **values}
    for name, default in defaults.items():
        if isinstance(default, dict):
            whole[name] = {**default, **whole[name]}
    return whole
