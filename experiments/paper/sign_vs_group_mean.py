"""Does Sign beat group-mean centring, and is it starvation that makes the difference?

    python -m experiments.paper.sign_vs_group_mean --preset lab --seeds 7
    python -m experiments.paper.sign_vs_group_mean --preset smollm2_arithmetic --seeds 3
    python -m experiments.paper.sign_vs_group_mean --preset qwen3.5_9b_gsm8k --seeds 7     # the paper's main table
    python -m experiments.paper.sign_vs_group_mean --preset llama3.1_8b_gsm8k --seeds 3    # its second model

`lab`: a small Llama from scratch learns sums under Sign, the group means and all controls: 133 runs, on two CPU cores 7
minutes the first time and 5 later. From 0.211: Sign 0.239 ±0.005, group mean 0.244 ±0.004, REINFORCE 0.257 ±0.003.
Every other preset: the same question of a real language model, under Sign and the two group means, by
`experiments.compare`, which takes every setting of a run. Kept in the output folder: results.json and a figure.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments.command import parse, print_json, run
from experiments.compare import Compare, compare
from experiments.lab.arms import Lab, controls, run_arms
from experiments.lab.devices import use_all_cores
from experiments.lab.report import figure, summarize, table
from experiments.lab.run import Optimizer
from experiments.paper.results import RESULTS, open_results
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError
from rlvr_jax.reports import write_summary
from rlvr_jax.training import RunResult, TrainConfig, read_result


@dataclasses.dataclass(frozen=True)
class SignVsGroupMean:
    """Compare Sign with group-mean centring and the controls."""

    preset: str = "lab"
    """lab, or one of `experiments.train`."""
    seeds: int = 7
    """How many, of sampling and of the order of questions; the first is the preset's, 0 in the lab."""
    output: Path | None = None
    """Folder; default: runs/sign_vs_group_mean-PRESET."""
    samples: int | None = None
    """G, of each prompt; default: the preset's, as below, and 4 in the lab."""
    steps: int | None = None
    """In the lab 200 by default."""
    prompts: int | None = None
    """Of each step; in the lab 16 by default."""
    learning_rate: float | None = None
    """In the lab 1e-4 by default."""
    max_new_tokens: int | None = None
    """Language model: the cap of completions."""
    success_rate: float = Lab.success_rate
    """Lab: held-out success rate at which the supervised start ends."""
    heterogeneity: float = Lab.heterogeneity
    """Lab: share of wrong labels at the hardest of ten levels of questions in the supervised start."""
    optimizer: Optimizer = Lab.optimizer
    """Lab: of the arms that do not say it in their name."""
    resume: bool = False
    """Language model: keep the runs that are finished, go on with the others."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> None:
    arguments = parse(SignVsGroupMean, __doc__)
    if arguments.seeds < 1:
        raise UserError(f"seeds is {arguments.seeds}, accepted are whole numbers from 1")
    folder = arguments.output or Path("runs") / f"sign_vs_group_mean-{arguments.preset}"
    if arguments.preset != "lab" and arguments.preset not in PRESETS:
        raise UserError(f"preset is {arguments.preset!r}, accepted are lab, {', '.join(PRESETS)}")
    given = {name: getattr(arguments, name) for name in ("samples", "steps", "learning_rate", "prompts")}
    given = {name: value for name, value in given.items() if value is not None}
    summary = (of_lab if arguments.preset == "lab" else of_language_model)(arguments, folder, given)
    if arguments.json and summary is not None:
        print_json(summary)


def of_lab(arguments: SignVsGroupMean, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    if arguments.resume:
        raise UserError("resume is True, accepted with preset lab is False: its runs are one program")
    if arguments.max_new_tokens is not None:
        raise UserError(f"max_new_tokens is {arguments.max_new_tokens}: the lab's completions are as long as its sums")
    if arguments.optimizer == "sgd" and "learning_rate" in given:
        given["sgd_learning_rate"] = given.pop("learning_rate")
    chosen = {name: getattr(arguments, name) for name in ("success_rate", "heterogeneity", "optimizer")}
    steps = given.pop("steps", Lab.steps)
    # Ten evaluations and the one before, or as near to that as divides the steps.
    every = max([n for n in range(1, steps // 10 + 1) if steps % n == 0], default=1)
    lab = Lab(**chosen, **given, steps=steps, evaluate_every=every)
    open_results(folder, arguments)
    use_all_cores()
    arms, seeds = controls(lab), range(arguments.seeds)
    traces = run_arms(lab, arms, seeds, [lab.base])
    summary = summarize(lab, arms, traces, seeds)
    write_summary(summary, folder / RESULTS)
    figure(lab, arms, traces, folder / "curves")
    Console().print(table(summary))
    print(f"kept in {folder}: results.json, curves.png, curves.svg")
    return summary


def of_language_model(arguments: SignVsGroupMean, folder: Path, given: dict[str, Any]) -> dict[str, Any] | None:
    """None on all hosts but the first."""
    for name in ("success_rate", "heterogeneity", "optimizer"):
        if getattr(arguments, name) != getattr(SignVsGroupMean, name):
            raise UserError(f"{name} is {getattr(arguments, name)!r}: only the lab takes it, --preset lab")
    if arguments.max_new_tokens is not None:
        given["max_new_tokens"] = arguments.max_new_tokens
    names = {"prompts": "prompts_per_step", "samples": "samples_per_prompt"}
    preset = PRESETS[arguments.preset]
    config = dataclasses.replace(
        preset,
        **{names.get(name, name): value for name, value in given.items()},
        seed=TrainConfig.seed,
        checkpoint_every=0,
        output=folder,
    )
    objectives = ("sign", "group_mean", "group_mean_std")
    seeds = tuple(range(preset.seed, preset.seed + arguments.seeds))
    summary = compare(Compare(config, objectives, seeds, resume=arguments.resume))
    if summary is None:
        return None
    summary["curves"] = {
        objective: _curves([read_result(folder / f"{objective}-seed{seed}") for seed in seeds])
        for objective in objectives
    }
    write_summary(summary, folder / RESULTS)
    return summary


def _curves(runs: Sequence[RunResult]) -> dict[str, list[float]]:
    """Means over seeds: of training by step, of held-out accuracy by evaluation."""
    names = ("reward", "degeneracy", "degeneracy_predicted", "truncated", "unparsable")
    curves = {name: np.mean([[line[name] for line in run.metrics] for run in runs], 0).tolist() for name in names}
    held_out = [[run.evaluations[step].accuracy.mean for step in sorted(run.evaluations)] for run in runs]
    return curves | {"held_out_accuracy": np.mean(held_out, 0).tolist(), "evaluated_at": sorted(runs[0].evaluations)}


if __name__ == "__main__":
    run(main)
