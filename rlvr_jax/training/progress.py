"""What a person sees while a run goes on, on standard error."""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    """A live line on a terminal; elsewhere (a log file) a plain line every tenth step."""

    def __init__(self, name: str, steps: int, done: int, *, shown: bool = True):
        self._name, self._steps, self._shown = name, steps, shown
        self._said = time.monotonic()
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._progress = Progress(*columns, console=self._console) if shown and self._console.is_terminal else None
        if self._progress:
            self._task = self._progress.add_task(name, total=steps, completed=done, figures="compiling")

    def __enter__(self) -> "RunProgress":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._progress:
            self._progress.console.print(f"{self._name}: {text}", highlight=False)
        elif self._shown:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)
        self._said = time.monotonic()

    def evaluating(self, done: int, questions: int) -> None:
        """How far an evaluation is; in a log file at most every ten seconds."""
        figures = f"held-out question {done}/{questions}"
        if self._progress:
            self._progress.update(self._task, figures=figures)
        elif done < questions and time.monotonic() - self._said > 10:
            self.say(figures)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        figures = (
            f"reward {metrics['reward']:.2f}  degenerate {metrics['degeneracy']:.2f}  "
            f"length {metrics['length']:.1f}  cut {metrics['truncated']:.2f}  "
            f"{timings['step_seconds']:.1f} s (sample {timings['sample_seconds']:.1f}, "
            f"verify {timings['verify_seconds']:.2f}, update {timings['update_seconds']:.1f})"
        )
        if self._progress:
            self._progress.update(self._task, completed=step, figures=figures)
        elif step % 10 == 0 or step in (1, self._steps):
            self.say(f"step {step}/{self._steps}  {figures}")
