"""Verdicts on responses of your own, and, where the file knows the right verdicts, where they differ.

python -m experiments.grade responses.jsonl --task math --gold-field answer --response-field completion
python -m experiments.grade cases.jsonl --math-verify --json
python -m experiments.grade responses.jsonl --output verdicts.jsonl

The file has one JSON object a line: the gold answer, the response and, if wanted, the task whose verifier judges it
(gsm8k, math, ...) and the right verdict, `correct`. Hundreds of MATH and thousands of GSM8K verdicts a second.
"""

import collections
import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments.command import parse, print_json, run
from rlvr_jax.errors import UserError
from rlvr_jax.tasks import Row, Verdict, VerifierPool
from rlvr_jax.tasks.graders import GRADERS, is_slow, load_grader
from rlvr_jax.tasks.pool import SECONDS
from rlvr_jax.tasks.rows import read_jsonl

OUTCOMES = ("correct", "wrong", "unparsable", "timed-out")
_MATH_VERIFY = "experiments.benchmarks.math_verify:grade"
_SAME_VERIFIER = {"math500": "math", "svamp": "gsm8k"}


@dataclasses.dataclass(frozen=True)
class Grade:
    """Judge responses."""

    file: Annotated[Path, tyro.conf.Positional]
    """JSONL with a gold answer and a response a line."""
    task: str = "math"
    """Verifier of lines that name none: gsm8k, gsm8k:strict, svamp, math, math500, or package.module:function."""
    gold_field: str = "gold"
    response_field: str = "response"
    task_field: str = "task"
    correct_field: str = "correct"
    """Of the right verdict, true or false, where it is known."""
    seconds: float = SECONDS
    """Time limit of one verdict of a verifier that may take long."""
    workers: int | None = None
    """Processes for verifiers that may take long; default: one for each CPU."""
    math_verify: bool = False
    """Show Math-Verify's own verdicts on MATH beside ours. It evaluates text: only for responses that you trust."""
    show: int = 20
    """Disagreements with `correct` that are listed."""
    output: Path | None = None
    """Write every line with its `outcome` and `reason` to this JSONL file."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""


@dataclasses.dataclass(frozen=True)
class Response:
    line: dict[str, Any]
    verifier: str
    gold: str
    text: str
    correct: bool | None
    """The right verdict, where the file knows it."""


def read_responses(arguments: Grade) -> list[Response]:
    """Raises UserError for a file that is not there, is empty or has other fields."""
    if not arguments.file.is_file():
        raise UserError(f"file is {str(arguments.file)!r}, accepted is a JSONL file")
    responses = [_response(arguments, line, where) for where, line in read_jsonl(arguments.file)]
    if not responses:
        raise UserError(f"{arguments.file} is empty; accepted is at least one response")
    return responses


def _response(arguments: Grade, line: object, where: str) -> Response:
    if not isinstance(line, dict):
        raise UserError(f"{where}: accepted are JSON objects")
    texts = []
    for name in (arguments.gold_field, arguments.response_field):
        value = line.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(f"{where}: {name} is {value!r}, accepted is a string (other fields: {', '.join(line)})")
        texts.append(str(value))
    correct = line.get(arguments.correct_field)
    if correct is not None and correct not in (True, False):
        raise UserError(f"{where}: {arguments.correct_field} is {correct!r}, accepted are true and false")
    task = line.get(arguments.task_field, arguments.task)
    verifier = _SAME_VERIFIER.get(task, task)
    if not isinstance(verifier, str) or (verifier not in GRADERS and ":" not in verifier):
        names = ", ".join((*GRADERS, *_SAME_VERIFIER, "package.module:function"))
        raise UserError(f"{where}: task is {task!r}, accepted are {names}")
    return Response(line, verifier, *texts, None if correct is None else bool(correct))


def judge(responses: Sequence[Response], verifier: str, arguments: Grade, progress: Progress) -> list[Verdict]:
    """Verdicts of one verifier, in order; in worker processes where it may take long."""
    bar = progress.add_task(verifier, total=len(responses))
    if not is_slow(verifier):
        grade = load_grader(verifier)
        return [grade(response.text, response.gold) for response in progress.track(responses, task_id=bar)]
    if ":" in verifier:
        load_grader(verifier)
    pool = VerifierPool(verifier, workers=arguments.workers, seconds=arguments.seconds)
    try:
        return pool(
            [Row(i, "", response.gold) for i, response in enumerate(responses)],
            [response.text for response in responses],
            lambda done: progress.update(bar, completed=done),
        )
    finally:
        pool.close()


def count(responses: Sequence[Response], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Verdicts by outcome and, of the responses whose right verdict is known, the errors."""
    outcomes = collections.Counter(verdict.outcome for verdict in verdicts)
    counts: dict[str, Any] = {"responses": len(verdicts), **{name: outcomes[name] for name in OUTCOMES}}
    known = [(r.correct, v.correct) for r, v in zip(responses, verdicts, strict=True) if r.correct is not None]
    if known:
        right = sum(correct for correct, _ in known)
        negatives = sum(correct and not found for correct, found in known)
        counts |= {
            "known": len(known),
            "known_right": right,
            "false_positives": sum(found and not correct for correct, found in known),
            "false_negatives": negatives,
            "false_negative_rate": negatives / right if right else None,
        }
    return counts


def table(tasks: dict[str, dict[str, Any]], name: str) -> Table:
    result = Table(title=f"Verdicts on {name}", title_justify="left", caption_justify="left")
    known = any("known" in counts for counts in tasks.values())
    columns = ["responses", *OUTCOMES, *(["known", "false_positives", "false_negatives"] if known else [])]
    result.add_column("verifier")
    for column in columns:
        result.add_column(column.replace("_", " "), justify="right")
    for verifier, counts in tasks.items():
        result.add_row(verifier, *(str(counts.get(column, "")) for column in columns))
    if known:
        result.caption = (
            "False: against the right verdicts that the file knows; wrong, unparsable, timed-out: no credit."
        )
    return result


def disagreements(responses: Sequence[Response], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "line": number,
            "id": response.line.get("id"),
            "kind": "false positive" if verdict.correct else "false negative",
            "reason": verdict.reason,
            "gold": response.gold,
            "response": response.text[-200:],
        }
        for number, (response, verdict) in enumerate(zip(responses, verdicts, strict=True), 1)
        if response.correct is not None and response.correct != verdict.correct
    ]


def main() -> None:
    arguments = parse(Grade, __doc__)
    responses = read_responses(arguments)
    verdicts: list[Any] = [None] * len(responses)
    tasks: dict[str, dict[str, Any]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for verifier in dict.fromkeys(response.verifier for response in responses):
            places = [i for i, response in enumerate(responses) if response.verifier == verifier]
            own = [responses[i] for i in places]
            started = time.perf_counter()
            found = judge(own, verifier, arguments, progress)
            seconds = time.perf_counter() - started
            tasks[verifier] = {**count(own, found), "seconds": seconds}
            for i, verdict in zip(places, found, strict=True):
                verdicts[i] = verdict
            if arguments.math_verify and verifier == "math":
                tasks["Math-Verify"] = count(own, judge(own, _MATH_VERIFY, arguments, progress))
    wrong = disagreements(responses, verdicts)
    if arguments.output is not None:
        write(arguments.output, responses, verdicts)
    if arguments.json:
        print_json({"tasks": tasks, "disagreements": wrong})
        return
    console = Console()
    console.print(table(tasks, arguments.file.name))
    for item in wrong[: arguments.show]:
        where = f"line {item['line']}" + (f" ({item['id']})" if item["id"] is not None else "")
        text = f"{item['kind']}, {where}: gold {item['gold']!r}, {item['reason']}: {item['response']!r}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    if len(wrong) > arguments.show:
        console.print(f"... and {len(wrong) - arguments.show} more; --show lists them", highlight=False)


def write(file: Path, responses: Iterable[Response], verdicts: Iterable[Verdict]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for response, verdict in zip(responses, verdicts, strict=True):
            lines.write(json.dumps({**response.line, "outcome": verdict.outcome, "reason": verdict.reason}) + "\n")


if __name__ == "__main__":
    run(main)
