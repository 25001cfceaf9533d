"""What a person sees while a run goes on, on standard error."""

import sys
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text


class RunProgress:
    """Three live lines of 80 columns on a terminal; elsewhere (a log file) a plain line every tenth step."""

    def __init__(self, name: str, steps: int, done: int, *, shown: bool = True):
        self._name, self._steps, self._shown = name, steps, shown
        self._said = time.monotonic()
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar, self._figures = Progress(*columns, console=self._console), Text("compiling", overflow="ellipsis")
        self._task = self._bar.add_task(name, total=steps, completed=done)
        live = Live(Group(self._bar, self._figures), console=self._console)
        self._live = live if shown and self._console.is_terminal else None

    def __enter__(self) -> "RunProgress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._live.console.print(f"{self._name}: {text}", highlight=False)
        elif self._shown:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)
        self._said = time.monotonic()

    def evaluating(self, done: int, questions: int) -> None:
        """How far an evaluation is; in a log file at most every ten seconds."""
        figures = f"held-out question {done}/{questions}"
        if self._live:
            self._figures.plain = figures
        elif done < questions and time.monotonic() - self._said > 10:
            self.say(figures)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        rewards = (
            f"reward {metrics['reward']:.2f}  all wrong {metrics['all_wrong']:.2f}  "
            f"all right {metrics['all_right']:.2f}  length {metrics['length']:.1f}  cut {metrics['truncated']:.2f}"
        )
        seconds = (
            f"{timings['step_seconds']:.1f} s (sample {timings['sample_seconds']:.1f}, "
            f"verify {timings['verify_seconds']:.2f}, update {timings['update_seconds']:.1f})"
        )
        if self._live:
            self._bar.update(self._task, completed=step)
            self._figures.plain = f"{rewards}\n{seconds}"
        elif step % 10 == 0 or step in (1, self._steps):
            self.say(f"step {step}/{self._steps}  {rewards}  {seconds}")
