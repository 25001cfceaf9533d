"""Accuracy of a model or of a trained run on held-out questions, with intervals.

python -m experiments.evaluate runs/arithmetic-sign-seed0
python -m experiments.evaluate embedded:smollm2-135m-instruct --task gsm8k --questions 64 --samples 1 --temperature 0
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress

from experiments.command import parse, print_json, run
from rlvr_jax.evaluation import evaluate
from rlvr_jax.models import load_params
from rlvr_jax.reports import evaluation_summary, evaluation_table
from rlvr_jax.sharding import MeshShape
from rlvr_jax.tasks import PromptFormat
from rlvr_jax.training import TrainConfig, prepare, restore_policy, run_config


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluate a policy."""

    model: Annotated[str, tyro.conf.Positional]
    """Hub id, local folder, .gguf file, embedded:NAME, or the folder of a run."""
    task: str | None = None
    """Default: the run's task, else arithmetic."""
    data: str | None = None
    prompt_format: PromptFormat | None = None
    questions: int = 256
    samples: int = 4
    temperature: float = 1.0
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    batch: int = 16
    """Questions that are sampled together."""
    mesh: MeshShape = MeshShape()
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> None:
    arguments = parse(Evaluate, __doc__)
    run_folder = Path(arguments.model)
    is_run = (run_folder / "run.json").is_file()
    known = run_config(run_folder) if is_run else {"model": arguments.model}
    shared = ("task", "data", "prompt_format", "max_new_tokens", "max_prompt_tokens")
    chosen = {name: getattr(arguments, name) or known.get(name) for name in shared}
    config = TrainConfig(
        model=known["model"],
        prompts_per_step=arguments.batch,
        evaluation_batch=arguments.batch,
        evaluation_questions=arguments.questions,
        evaluation_samples=arguments.samples,
        evaluation_temperature=arguments.temperature,
        mesh=arguments.mesh,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    setup = prepare(config)
    model, mesh = setup.model, setup.mesh
    if is_run:
        params, _ = restore_policy(run_folder, model, mesh)
    else:
        params = load_params(model.folder, model.config, mesh)

    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("questions", total=arguments.questions)
        evaluation = evaluate(
            setup.roller,
            params,
            questions=arguments.questions,
            samples=arguments.samples,
            max_new_tokens=config.max_new_tokens or setup.roller.task.max_new_tokens,
            temperature=arguments.temperature,
            batch=arguments.batch,
            progress=lambda done: progress.update(bar, completed=done),
        )
    summary = evaluation_summary(evaluation)
    if arguments.json:
        print_json(summary)
    else:
        Console().print(evaluation_table(summary, f"{arguments.model} on {config.task}"))


if __name__ == "__main__":
    run(main)
