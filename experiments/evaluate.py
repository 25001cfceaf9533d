"""Accuracy, pass@k and maj@k of a model or of a trained run on held-out questions, with intervals over questions.

python -m experiments.evaluate runs/arithmetic-sign-seed0
python -m experiments.evaluate embedded:smollm2-135m-instruct --task gsm8k --questions 64 --samples 1 --temperature 0
python -m experiments.evaluate OWNER/NAME --task gsm8k --samples 16 --k 1 2 4 8 16 --output FOLDER --resume
python -m experiments.evaluate runs/gsm8k-sign-seed0 --samples 16 --against FOLDER

With --output every finished batch is kept, completions and verdicts, and a killed evaluation goes on with --resume.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import (
    EvaluationFolder,
    checksums,
    evaluate,
    held_out_rows,
    read_evaluation,
    require_same_questions,
)
from rlvr_jax.models import load_params
from rlvr_jax.reports import against_summary, against_table, evaluation_summary, evaluation_table, require_ks
from rlvr_jax.sampling import checked_truncation
from rlvr_jax.sharding import MeshShape, agreed, is_first_host, join_hosts
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
    questions: int | None = None
    """The first so many of the held-out split; default: all of them, 256 where the task draws them without end."""
    samples: int = 4
    k: tuple[int, ...] = ()
    """Of pass@k and maj@k; default: 1, 2, 4, ... up to the samples."""
    temperature: float = 1.0
    """0: greedy."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0: from all."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability; 1: from all."""
    min_p: float = 0.0
    """Draw from tokens with at least this share of the likeliest one's probability; 0: from all."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, which keeps them, so the verifier sees them; default: the run's, else none."""
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Default: the run's, else float32."""
    batch: int = 16
    """Questions that are sampled together."""
    mesh: MeshShape = MeshShape()
    output: Path | None = None
    """Keep settings, completions and verdicts in this folder (one Parquet file a batch)."""
    resume: bool = False
    """Go on with the evaluation in the output folder, if there is one."""
    against: Path | None = None
    """Folder of a finished evaluation of the same questions, to be compared with question by question."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> None:
    arguments = parse(Evaluate, __doc__)
    require_ks(arguments.k, arguments.samples)
    truncation = checked_truncation(arguments.top_k, arguments.top_p, arguments.min_p)
    if arguments.resume and arguments.output is None:
        raise UserError("resume is given without output: accepted is --output FOLDER with it")
    other = None if arguments.against is None else read_evaluation(arguments.against)
    run_folder = Path(arguments.model)
    is_run = (run_folder / "run.json").is_file()
    known = run_config(run_folder) if is_run else {"model": arguments.model}
    shared = ("task", "data", "prompt_format", "max_new_tokens", "max_prompt_tokens", "compute_dtype")
    chosen = {name: getattr(arguments, name) or known.get(name) for name in shared}
    stop = arguments.stop or known.get("stop", ())
    config = TrainConfig(
        model=known["model"],
        prompts_per_step=arguments.batch,
        evaluation_batch=arguments.batch,
        evaluation_samples=arguments.samples,
        evaluation_temperature=arguments.temperature,
        mesh=arguments.mesh,
        stop=tuple(stop),
        **{name: value for name, value in chosen.items() if value is not None},
        **({} if arguments.questions is None else {"evaluation_questions": arguments.questions}),
    )
    join_hosts()
    with agreed():
        setup = prepare(config)
        rows = held_out_rows(setup.roller.task, arguments.questions)
        if other is not None:
            # Known before hours of sampling, not after.
            require_same_questions(checksums([(row.question, row.answer) for row in rows]), other[0].checksums)
    model, mesh = setup.model, setup.mesh
    if is_run:
        params, step = restore_policy(run_folder, model, mesh)
    else:
        params, step = load_params(model.folder, model.config, mesh), None
    asked = {
        "questions": len(rows),
        "samples": arguments.samples,
        "temperature": arguments.temperature,
        "max_new_tokens": config.max_new_tokens or setup.roller.task.max_new_tokens,
        "batch": arguments.batch,
    }
    settings = {
        "model": arguments.model,
        "step": step,
        **{name: getattr(config, name) for name in shared if name != "max_new_tokens"},
        **asked,
        **{name: getattr(arguments, name) for name in ("top_k", "top_p", "min_p")},
        "stop": list(stop),
        "mesh": dict(mesh.shape),
    }
    folder = None
    if arguments.output is not None:
        folder = EvaluationFolder(arguments.output, settings, resume=arguments.resume)

    with Progress(console=Console(stderr=True), disable=not is_first_host()) as progress:
        bar = progress.add_task("questions", total=asked["questions"])
        evaluation = evaluate(
            setup.roller,
            params,
            **asked,
            truncation=truncation,
            folder=folder,
            progress=lambda done: progress.update(bar, completed=done),
        )
    if not is_first_host():
        return
    summary = evaluation_summary(evaluation, arguments.k)
    if other is not None:
        summary["against"] = against_summary(evaluation, other[0])
        summary["against_differs_in"] = _differences(settings, other[1])
    if arguments.json:
        print_json(summary)
        return
    console = Console()
    console.print(evaluation_table(summary, f"{arguments.model} on {config.task}"))
    if other is not None:
        console.print(against_table(summary["against"], f"minus {arguments.against}"))
        for name, (here, there) in summary["against_differs_in"].items():
            console.print(f"{name}: {here} here, {there} there")
    if folder is not None:
        console.print(f"kept in {folder.path}")


def _differences(settings: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that the two do not share, as (here, there)."""
    return {name: (value, other.get(name)) for name, value in settings.items() if value != other.get(name)}


if __name__ == "__main__":
    run(main)
