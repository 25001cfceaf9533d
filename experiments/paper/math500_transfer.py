"""Does what a run learnt on one task carry over to MATH-500?

    python -m experiments.paper.math500_transfer runs/gsm8k-sign-seed42 runs/gsm8k-group_mean_std-seed42

The untrained model and every run's policy answer the same questions, greedily; each run is compared with the untrained
model question by question. Runs must be of one model. The paper's own numbers are of Qwen3.5-9B, for which the presets
`qwen3.5_9b_gsm8k` and `llama3.1_8b_gsm8k` make the runs. Kept in the output folder: results.json.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import rich.box
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments.command import parse, print_json, run
from experiments.paper.results import RESULTS, open_results
from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Evaluation, evaluate, held_out_rows
from rlvr_jax.models import load_params
from rlvr_jax.reports import against_summary, evaluation_summary, write_summary
from rlvr_jax.sharding import MeshShape
from rlvr_jax.tasks import PromptFormat
from rlvr_jax.training import TrainConfig, prepare, restore_policy
from rlvr_jax.training.restore import read_config


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Evaluate runs, and the model that they started from, on MATH-500."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    data: str | None = None
    """The task's rows; default: from the hub."""
    prompt_format: PromptFormat | None = None
    """Default: the first run's."""
    questions: int | None = None
    """The first so many; default: all 500."""
    max_new_tokens: int | None = None
    """Default: what the task needs, which is more than the runs were trained with."""
    batch: int = 16
    """Questions that are sampled together."""
    mesh: MeshShape = MeshShape()
    output: Path = Path("runs/math500_transfer")
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def main() -> None:
    arguments = parse(Transfer, __doc__)
    configs = {str(path): read_config(path) for path in arguments.runs}
    models = {config.model for config in configs.values()}
    if len(models) != 1:
        raise UserError(f"runs are of the models {sorted(models)}: accepted are runs of one model")
    first = next(iter(configs.values()))
    open_results(arguments.output, arguments)
    setup = prepare(
        TrainConfig(
            model=first.model,
            task="math500",
            data=arguments.data,
            prompt_format=arguments.prompt_format or first.prompt_format,
            max_new_tokens=arguments.max_new_tokens,
            compute_dtype=first.compute_dtype,
            prompts_per_step=arguments.batch,
            evaluation_batch=arguments.batch,
            mesh=arguments.mesh,
        )
    )
    questions = len(held_out_rows(setup.roller.task, arguments.questions))
    asked = {
        "questions": questions,
        "samples": 1,
        "max_new_tokens": arguments.max_new_tokens or setup.roller.task.max_new_tokens,
        "temperature": 0.0,
        "batch": arguments.batch,
    }
    found: dict[str, Evaluation] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for name in ("(untrained)", *configs):
            bar = progress.add_task(name, total=questions)
            if name in configs:
                params, _ = restore_policy(Path(name), setup.model, setup.mesh)
            else:
                params = load_params(setup.model.folder, setup.model.config, setup.mesh)
            found[name] = evaluate(
                setup.roller, params, **asked, progress=lambda done, bar=bar: progress.update(bar, completed=done)
            )
    summary = summarize(found) | {"model": first.model, **asked}
    write_summary(summary, arguments.output / RESULTS)
    if arguments.json:
        print_json(summary)
        return
    Console().print(table(summary))
    print(f"kept in {arguments.output}: results.json")


def summarize(found: dict[str, Evaluation]) -> dict[str, Any]:
    """Of each policy by name, the untrained one first; the others against it."""
    (_, base), *_ = found.items()
    return {
        "policies": {
            name: evaluation_summary(each, (1,)) | ({} if each is base else {"against": against_summary(each, base)})
            for name, each in found.items()
        }
    }


def table(summary: dict[str, Any]) -> Table:
    """One row a policy."""
    result = Table(
        box=rich.box.SIMPLE_HEAD,
        caption=f"{summary['model']}, greedy on {summary['questions']} questions of MATH-500; 95 % intervals over "
        "questions, the gain paired by question.",
        caption_justify="left",
    )
    for column in ("policy", "accuracy", "gain", "cut"):
        result.add_column(column, justify="left" if column == "policy" else "right")
    for name, figures in summary["policies"].items():
        accuracy = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figures["accuracy"])
        gain = ""
        if "against" in figures:
            gain = "{difference:+.3f} [{low:+.3f}, {high:+.3f}]".format(**figures["against"]["accuracy"])
        result.add_row(name, accuracy, gain, f"{figures['truncated']['mean']:.0%}")
    return result


if __name__ == "__main__":
    run(main)
