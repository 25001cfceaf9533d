"""Run folders as they are read for a report, and which of them are seeds of one another."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_jax.errors import UserError
from rlvr_jax.sampling import Precision
from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import RunResult, TrainConfig, read_result, run_config

# Two runs that differ in these alone are seeds of one method: how far, where, in which pieces, how often looked at.
_SAME_METHOD = {
    "seed", "steps", "output", "checkpoint_every", "keep_checkpoints", "evaluate_every", "evaluation_batch",
    "mesh", "micro_batches", "packing", "remat", "slots",
}  # fmt: skip
_METRICS = ("reward", "degeneracy", "degeneracy_predicted", "zero_advantage", "truncated", "gradient_norm")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, finished or not."""

    config: TrainConfig
    result: RunResult

    @property
    def folder(self) -> Path:
        return self.result.folder

    @property
    def done(self) -> int:
        """Steps that are on disk."""
        return len(self.result.metrics)

    @property
    def finished(self) -> bool:
        return self.done >= self.config.steps and self.done in self.result.evaluations

    def completion_files(self) -> list[Path]:
        """By step."""
        return sorted((self.folder / "completions").glob("step_*.parquet"))


Arms = dict[str, list[Run]]
"""Label of a method to its runs, one for each seed."""


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs of these folders, each a run's own or one that holds runs, as `experiments.compare` leaves it.

    Raises UserError for a folder without a run, one that is named twice, a run of another task than the first one's,
    and one that lacks a file or has one that cannot be read.
    """
    folders: list[Path] = []
    for path in paths:
        inside = [path] if (path / "run.json").is_file() else sorted(file.parent for file in path.glob("*/run.json"))
        if not inside:
            what = "holds no run" if path.is_dir() else "is not a folder"
            raise UserError(
                f"run is {str(path)!r}: it {what}; accepted is a folder with run.json, or one with such folders"
            )
        folders += inside
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"run {str(folder)!r} is named twice: accepted is each run once")
        seen.add(folder.resolve())
    runs = [read_run(folder) for folder in folders]
    if not runs:
        raise UserError("no run is given: accepted are one or more run folders")
    for run in runs:
        if run.config.task != runs[0].config.task:
            raise UserError(
                f"task is {run.config.task!r} in {str(run.folder)!r} and {runs[0].config.task!r} in "
                f"{str(runs[0].folder)!r}: accepted are runs of one task"
            )
    return runs


def read_run(folder: Path) -> Run:
    """Raises UserError where a file is missing or cannot be read, and for a run that has not finished a step."""
    try:
        config = _config(run_config(folder))
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / 'run.json'} is not a run's configuration: {_one_line(error)}") from None
    try:
        result = read_result(folder)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"the run in {str(folder)!r} cannot be read: {_one_line(error)}") from None
    if not result.metrics:
        raise UserError(f"the run in {str(folder)!r} has no finished step in metrics.jsonl; accepted is one or more")
    for place, line in enumerate(result.metrics, 1):
        missing = [name for name in ("step", *_METRICS) if name not in line]
        if missing or line["step"] != place:
            wrong = f"no {', '.join(missing)}" if missing else f"step {line['step']}"
            raise UserError(f"line {place} of {folder / 'metrics.jsonl'} has {wrong}: accepted are all steps from 1 on")
    if 0 not in result.evaluations:
        raise UserError(f"{folder / 'evaluations' / 'step_000000.json'} is missing: accepted is a run that has it")
    return Run(config, result)


def group_runs(runs: Sequence[Run]) -> Arms:
    """Runs by method, in the order of `runs`; a method's by seed.

    The label is the objective, and what else differs between the runs and shapes a result. Raises UserError for two
    runs of one method with one seed.
    """
    fields = [field.name for field in dataclasses.fields(TrainConfig)]
    varied = [
        name
        for name in fields
        if name not in _SAME_METHOD | {"objective"} and len({repr(getattr(run.config, name)) for run in runs}) > 1
    ]
    arms: Arms = {}
    for run in runs:
        label = ", ".join([run.config.objective, *(f"{name} {getattr(run.config, name)}" for name in varied)])
        for other in arms.setdefault(label, []):
            if other.config.seed == run.config.seed:
                raise UserError(
                    f"seed is {run.config.seed} in {str(other.folder)!r} and in {str(run.folder)!r}, both of {label}: "
                    "accepted are different seeds"
                )
        arms[label].append(run)
    return {label: sorted(seeds, key=lambda run: run.config.seed) for label, seeds in arms.items()}


def _config(described: dict[str, Any]) -> TrainConfig:
    """As JSON has it; settings that a run of an earlier version did not have are the defaults."""
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in described.items() if name in names}
    for name, kind in (("rollout", Precision), ("mesh", MeshShape)):
        values[name] = kind(**values.get(name, {}))
    if values.get("output") is not None:
        values["output"] = Path(values["output"])
    return TrainConfig(**values)


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]
