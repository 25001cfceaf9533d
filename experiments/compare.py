"""The main job: the same policy under several objectives and seeds, side by side.

    python -m experiments.compare
    python -m experiments.compare gsm8k --model OWNER/NAME --objectives sign group_mean --seeds 0 1 2

All runs see the same prompts and the same sampling noise, and are evaluated before and after on the same
held-out questions. With the default preset: 5 to 7 minutes on two CPU cores.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from experiments.command import parse_with_presets, print_json, run
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError
from rlvr_jax.reports import comparison_figure, comparison_table, summarize, write_summary
from rlvr_jax.sharding import agreed, is_first_host, join_hosts
from rlvr_jax.training import RunResult, TrainConfig, prepare, read_result, train
from rlvr_jax.training.preemption import stopping_at_once


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare objectives."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    objectives: tuple[str, ...] = ("sign", "group_mean_std")
    seeds: tuple[int, ...] = (0,)
    resume: bool = False
    """Keep the runs that are finished, go on with the others."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def _preset(config: TrainConfig) -> Compare:
    """Without checkpoints, which would be a full state for each run; shorter where the preset is for a laptop."""
    if config.task == "arithmetic":
        config = dataclasses.replace(config, steps=30, evaluate_every=15)
    return Compare(dataclasses.replace(config, checkpoint_every=0, seed=TrainConfig.seed), seeds=(config.seed,))


@stopping_at_once()
def main() -> None:
    presets = {name: _preset(config) for name, config in PRESETS.items()}
    arguments = parse_with_presets(presets, __doc__, default="smollm2_arithmetic")
    summary = compare(arguments)
    if arguments.json and summary is not None:
        print_json(summary)


def compare(arguments: Compare) -> dict[str, Any] | None:
    """All runs, the table, the figure and the summary, which is also returned; None on all hosts but the first."""
    config = arguments.config
    default = TrainConfig()
    for name, several in (("objective", "objectives"), ("seed", "seeds")):
        if getattr(config, name) != getattr(default, name):
            raise UserError(f"{name} is {getattr(config, name)!r}: compare takes --{several}")
    for name, values in (("objectives", arguments.objectives), ("seeds", arguments.seeds)):
        if not values or len(set(values)) < len(values):
            raise UserError(f"{name} are {values}, accepted are one or more different ones")

    folder = config.output or Path("runs") / f"compare-{config.task.replace(':', '-')}"
    configs = {
        (objective, seed): dataclasses.replace(
            config, objective=objective, seed=seed, output=folder / f"{objective}-seed{seed}"
        )
        for seed in arguments.seeds
        for objective in arguments.objectives
    }
    join_hosts()
    with agreed():
        if folder.is_dir() and any(folder.iterdir()) and not arguments.resume:
            raise UserError(
                f"output is {str(folder)!r}: the folder holds another run; accepted are --resume or another --output"
            )
        setup = prepare(config)
    results: dict[tuple[str, int], RunResult] = {}
    for (objective, seed), run_config in configs.items():
        before = next(iter(results.values())).before if results else None
        earlier = read_result(run_config.folder)
        if arguments.resume and run_config.steps in earlier.evaluations:
            results[objective, seed] = earlier
        else:
            name = f"{objective}, seed {seed}"
            results[objective, seed] = train(run_config, setup, resume=arguments.resume, name=name, before=before)

    if not is_first_host():
        return None
    arms = {objective: [results[objective, seed] for seed in arguments.seeds] for objective in arguments.objectives}
    summary = summarize(arms)
    comparison_figure(arms, folder / "comparison.png")
    write_summary(summary, folder / "comparison.json")
    Console().print(comparison_table(summary))
    print(f"figure: {folder / 'comparison.png'}, figures as JSON: {folder / 'comparison.json'}")
    return summary


if __name__ == "__main__":
    run(main)
