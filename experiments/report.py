"""One HTML page and its figures from run folders: curves, silent groups, pass@k, tests, and completions to read.

    python -m experiments.report runs/compare-arithmetic --out report/
    python -m experiments.report runs/arithmetic-sign-seed0 runs/arithmetic-sign-seed1 --json

A RUN is the folder of a run, finished or not, or one that holds several, as `experiments.compare` leaves it. Runs that
differ in their seed alone are one method. The page needs no network and no script, so it can be mailed. Seconds.
"""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.command import parse, print_json, run
from experiments.presets import PRESETS
from rlvr_jax.reports import find_runs, group_runs, write_report
from rlvr_jax.training import TrainConfig


@dataclasses.dataclass(frozen=True)
class Report:
    """Make a report."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or folders of them."""
    out: Path = Path("report")
    """Folder of index.html and figures/; an earlier report there is replaced."""
    json: bool = False
    """Print the figures' numbers as one JSON object on the last line."""


def train_command(config: TrainConfig) -> str:
    """The shortest command that trains with this configuration: a preset's name and what differs from it."""
    commands = [[name, *_flags(preset, config)] for name, preset in PRESETS.items()]
    return shlex.join(["python", "-m", "experiments.train", *min(commands, key=len)])


def _flags(default: Any, value: Any, prefix: str = "--") -> list[str]:
    words: list[str] = []
    for field in dataclasses.fields(value):
        was, now = getattr(default, field.name), getattr(value, field.name)
        name = field.name.replace("_", "-")
        if was == now:
            continue
        if dataclasses.is_dataclass(now):
            words += _flags(was, now, f"{prefix}{name}.")
        elif isinstance(now, bool):
            words.append(f"{prefix}{'' if now else 'no-'}{name}")
        else:
            words += [f"{prefix}{name}", *map(str, now if isinstance(now, tuple) else (now,))]
    return words


def main() -> None:
    arguments = parse(Report, __doc__)
    arms = group_runs(find_runs(arguments.runs))
    command = shlex.join(["python", "-m", "experiments.report", *map(str, arguments.runs), "--out", str(arguments.out)])
    numbers = write_report(arms, arguments.out, command, train_command)
    page = arguments.out / "index.html"
    if arguments.json:
        print_json(numbers | {"page": str(page)})
    else:
        print(f"page: {page}, figures: {arguments.out / 'figures'}")


if __name__ == "__main__":
    run(main)
