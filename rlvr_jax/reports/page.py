"""The page of a report: one HTML file that asks nobody for anything, with its figures in it."""

import base64
import importlib.resources
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from rlvr_jax.errors import UserError
from rlvr_jax.reports import plots
from rlvr_jax.reports.contrasts import contrasts, method_figures
from rlvr_jax.reports.runs import Arms, Run
from rlvr_jax.reports.samples import sample_completions
from rlvr_jax.reports.series import (
    advantage_distributions,
    degeneracy_curves,
    gradient_norms,
    learning_curves,
    pass_at_k_curves,
)
from rlvr_jax.training import TrainConfig

GENERATOR = "rlvr_jax report"

FIGURES = {
    "held_out_accuracy": (
        "Held-out accuracy",
        "Share of right samples on held-out questions, mean over seeds, with 95 % intervals over questions.",
    ),
    "training_reward": (
        "Training reward",
        "Share of right samples in training: each seed's mean over five steps, then the mean over seeds. "
        "Bands reach from the lowest seed to the highest; one seed has none.",
    ),
    "degeneracy": (
        "Degenerate groups, observed and predicted",
        "Share of prompts whose samples are all right or all wrong (solid), and what it would be if every prompt of "
        "the step had the same success rate (dashed, hollow). Drawn as training reward is.",
    ),
    "pass_at_k": (
        "pass@k, untrained and trained",
        "Chance that one of k samples of a held-out question is right (unbiased estimate), mean over seeds, with 95 % "
        "intervals over questions.",
    ),
    "advantages": (
        "Advantages in training",
        "Of all samples of all steps and seeds, recomputed from the verdicts. Those at exactly zero push nothing.",
    ),
    "gradient_norms": (
        "Gradient norms",
        "Distribution over the steps of all seeds, before clipping; the vertical line is where clipping starts.",
    ),
}
"""Title and caption of each figure, in the order of the page."""


def report_numbers(arms: Arms) -> dict[str, Any]:
    """Every figure's and table's numbers, as plain JSON values. Raises UserError as the functions it is made of do."""
    runs = [run for seeds in arms.values() for run in seeds]
    return {
        "task": runs[0].config.task,
        "models": sorted({run.config.model for run in runs}),
        "questions": len(runs[0].result.before.rewards),
        "runs": [_run(label, run) for label, seeds in arms.items() for run in seeds],
        "methods": method_figures(arms),
        "contrasts": contrasts(arms),
        "learning_curves": learning_curves(arms),
        "degeneracy": degeneracy_curves(arms),
        "pass_at_k": pass_at_k_curves(arms),
        "advantages": advantage_distributions(arms),
        "gradient_norms": gradient_norms(arms),
    }


def page(
    numbers: Mapping[str, Any],
    completions: Mapping[str, Any],
    pictures: Mapping[str, bytes],
    command: str,
    run_commands: Mapping[str, str],
) -> str:
    """HTML from `report_numbers`, `sample_completions` and figures as SVG.

    `command` makes the page and its figures again, `run_commands` the run of each folder.

    Whatever a model wrote is escaped, and the page's own policy forbids scripts and requests.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"interval": _interval, "p": _p}
    template = environment.from_string(
        importlib.resources.files("rlvr_jax.reports").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        generator=GENERATOR,
        numbers=numbers,
        completions=completions,
        figures=[
            {
                "name": name,
                "title": title,
                "caption": caption,
                "data": base64.b64encode(pictures[name]).decode(),
            }
            for name, (title, caption) in FIGURES.items()
            if name in pictures
        ],
        left_out={label: x["reason"] for label, x in numbers["advantages"].items() if "reason" in x},
        command=command,
        run_commands=run_commands,
    )


def write_report(arms: Arms, folder: Path, command: str, train_command: Callable[[TrainConfig], str]) -> dict[str, Any]:
    """Writes `index.html` and `figures/*.svg`, `*.png` into the folder, and returns the numbers.

    `command` is said to make the report, `train_command(config)` each of its runs.
    An earlier report there is replaced, each file aside and then renamed, the page last. Raises UserError for a folder
    with a page that is not a report, and as `report_numbers`.
    """
    _require_own(folder)
    numbers = report_numbers(arms)
    completions = sample_completions(arms)
    drawn = plots.draw(numbers)
    pictures = {kind: {name: plots.render(figure, kind) for name, figure in drawn.items()} for kind in ("svg", "png")}
    run_commands = {str(run.folder): train_command(run.config) for runs in arms.values() for run in runs}
    html = page(numbers, completions, pictures["svg"], command, run_commands)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        for kind in ("svg", "png"):
            file = folder / "figures" / f"{name}.{kind}"
            if name in drawn:
                _write(file, pictures[kind][name])
            else:
                file.unlink(missing_ok=True)
    _write(folder / "index.html", html.encode())
    return numbers


def _require_own(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out is {str(folder)!r}: a file is there, accepted is a folder")
    file = folder / "index.html"
    if file.exists() and GENERATOR not in file.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"out is {str(folder)!r}: its index.html is not a report; accepted is another folder")


def _write(file: Path, content: bytes) -> None:
    """Aside, then renamed: the file is whole or absent."""
    scratch = file.with_name(f".{file.name}.part")
    scratch.write_bytes(content)
    os.replace(scratch, file)


def _run(label: str, run: Run) -> dict[str, Any]:
    return {
        "method": label,
        "seed": run.config.seed,
        "folder": str(run.folder),
        "steps": run.done,
        "of_steps": run.config.steps,
        "finished": run.finished,
    }


def _interval(interval: Mapping[str, float] | None, sign: str = "", mean: str = "mean") -> str:
    if interval is None:
        return "not yet"
    return f"{interval[mean]:{sign}.3f} [{interval['low']:{sign}.3f}, {interval['high']:{sign}.3f}]"


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.0e}"
