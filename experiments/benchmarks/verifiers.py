"""Verdicts a second of the GSM8K and the MATH verifier, and what completions that hang cost the others.

The completions are the sets' own worked solutions, to their own question and as often to another one. GSM8K is judged
in this process, MATH by worker processes, as in training. In the last part one completion in twenty compares
polynomials that would take SymPy minutes; the batch may take twice the time limit more than without them. Exit status
1 when a floor is missed.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table as RichTable

from experiments.command import print_json
from rlvr_jax.errors import UserError
from rlvr_jax.tasks import Row, make_task, verifier_of
from rlvr_jax.tasks.pool import SECONDS, Verifier
from rlvr_jax.tasks.stores import Table, fetch_table, open_tables

_HANGING = Row(0, "", "(x+y+z+w)^{80}"), r"\boxed{(x+y+z+w)^{79}x+(x+y+z+w)^{79}(y+z+w)}"


@dataclasses.dataclass(frozen=True)
class VerifiersBenchmark:
    """Time verdicts on worked solutions."""

    gsm8k: str | None = None
    """Where the test split of GSM8K is kept, any form that `--data` accepts; default: the hub."""
    math: str | None = None
    """The same for MATH-500."""
    batch: int = 512
    """MATH completions in the batch of which one in twenty hangs."""
    repeats: int = 3
    """Rounds, after one that warms up; the median counts."""
    gsm8k_floor: float = 3000.0
    """Verdicts a second."""
    math_floor: float = 300.0
    json: bool = False
    """Print all figures as one JSON object on the last line."""


def worked_solutions(table: Table, solution: str, final: Callable[[str], str]) -> tuple[list[Row], list[str]]:
    """Each row twice: with its own worked solution and with that of another question."""
    rows = [table.read(i) for i in range(table.size)]
    if missing := [i for i, row in enumerate(rows) if solution not in row or "answer" not in row]:
        raise UserError(f"{table.where(missing[0])}: accepted are rows with {solution} and answer")
    asked = [Row(i, "", final(row["answer"])) for i, row in enumerate(rows)]
    texts = [row[solution] for row in rows]
    pairs = zip(texts, texts[7:] + texts[:7], strict=True)
    return [row for row in asked for _ in range(2)], [text for pair in pairs for text in pair]


def test_split(data: str | None, hub: tuple[str, str | None]) -> Table:
    if data is None:
        return fetch_table(*hub, "test")
    tables = open_tables(data)
    return tables.get("test") or next(iter(tables.values()))


def median_seconds(verify: Verifier, rows: Sequence[Row], completions: Sequence[str], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        verify(rows, completions)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[repeats // 2]


def benchmark_verifiers(arguments: VerifiersBenchmark) -> int:
    """Prints the table; 1 when a floor is missed."""
    questions = test_split(arguments.gsm8k, ("openai/gsm8k", "main"))
    problems = test_split(arguments.math, ("HuggingFaceH4/MATH-500", None))
    sets = {
        "gsm8k": worked_solutions(questions, "answer", lambda text: text.rpartition("####")[2].strip()),
        "math": worked_solutions(problems, "solution", str.strip),
    }
    floors = {"gsm8k": arguments.gsm8k_floor, "math": arguments.math_floor}
    figures: dict[str, float] = {}
    for name, (rows, completions) in sets.items():
        verify = verifier_of(make_task(name))
        seconds = median_seconds(verify, rows, completions, arguments.repeats)
        figures[f"{name}_verdicts_per_second"] = len(rows) / seconds
    rows, completions = (list(part[: arguments.batch]) for part in sets["math"])
    seconds = median_seconds(verify, rows, completions, arguments.repeats)
    for i in range(0, len(rows), 20):
        rows[i], completions[i] = _HANGING
    started = time.perf_counter()
    verdicts = verify(rows, completions)
    figures["seconds_with_hanging"] = time.perf_counter() - started
    figures["seconds_without"] = seconds
    figures["timed_out"] = sum(verdict.outcome == "timed-out" for verdict in verdicts)
    allowed = 2 * SECONDS + seconds
    passes = figures["seconds_with_hanging"] <= allowed and all(
        figures[f"{name}_verdicts_per_second"] >= floor for name, floor in floors.items()
    )
    if arguments.json:
        print_json(figures | {"seconds_allowed": allowed, "passes": passes})
        return int(not passes)
    table = RichTable(
        caption=f"Medians of {arguments.repeats} rounds. In the last row {figures['timed_out']} of {len(rows)} MATH "
        f"completions hang; the limit of each is {SECONDS:g} s."
    )
    for column in ("", "measured", "asked"):
        table.add_column(column, justify="left" if not column else "right")
    for name, floor in floors.items():
        measured = figures[f"{name}_verdicts_per_second"]
        table.add_row(f"{name}, verdicts a second", f"{measured:,.0f}", f"at least {floor:,.0f}")
    table.add_row("math with hanging, seconds", f"{figures['seconds_with_hanging']:.1f}", f"at most {allowed:.1f}")
    Console().print(table)
    return int(not passes)
