"""A user's own log of rewards, one sample a line, as counts per prompt."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from rlvr_jax.errors import UserError

PROMPT_NAMES = ("prompt_id", "question_id", "problem_id", "uid", "id", "prompt", "question", "problem")
REWARD_NAMES = ("reward", "correct", "score")
"""Accepted names, the first that a line has is taken."""

_REWARDS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


class RewardLog(NamedTuple):
    """Prompts in the order in which they first appear."""

    ids: tuple[str, ...]
    n: Int[np.ndarray, " prompts"]
    """Samples of each."""
    c: Int[np.ndarray, " prompts"]
    """How many of them are right."""


def read_reward_log(path: str | Path) -> RewardLog:
    """Counts per prompt from `.csv` (with a header) or `.jsonl`, one sample a line; read line by line.

    A line names its prompt by one of PROMPT_NAMES (an id, or the prompt's text) and its verdict by one of
    REWARD_NAMES, which is 0, 1, 0.0, 1.0, true or false. Lines of one prompt need not stand together; other columns
    are left alone; blank lines too.

    Raises UserError, with file, line and value, for a file that cannot be read, a line without prompt or verdict, and a
    verdict that is not binary.
    """
    path = Path(path)
    readers = {".csv": _csv_lines, ".jsonl": _json_lines, ".ndjson": _json_lines}
    if path.suffix.lower() not in readers:
        raise UserError(f"reward log is {str(path)!r}, accepted are .csv and .jsonl files")
    counts: dict[str, list[int]] = {}
    try:
        for line, row in readers[path.suffix.lower()](path):
            where = f"{path}, line {line}"
            prompt = _prompt(row, where)
            right = _reward(row, where)
            count = counts.setdefault(prompt, [0, 0])
            count[0] += 1
            count[1] += right
    except OSError as error:
        raise UserError(f"reward log {str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"reward log {str(path)!r} is not UTF-8 text") from None
    if not counts:
        raise UserError(f"reward log {str(path)!r} holds no rewards, accepted is one or more lines")
    n, c = np.array(list(counts.values()), np.int64).T
    return RewardLog(tuple(counts), n, c)


def _csv_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {line} is {_short(text.strip())}, accepted is one JSON object")
            yield line, row


def _prompt(row: Mapping[str, Any], where: str) -> str:
    name = _first(row, PROMPT_NAMES, "prompt", where)
    value = row[name]
    # bool is a kind of int; a yes or no names no prompt.
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise UserError(f"{where}: {name} is {_short(value)}, accepted is an id or a text")
    return str(value)


def _reward(row: Mapping[str, Any], where: str) -> int:
    name = _first(row, REWARD_NAMES, "reward", where)
    value = row[name]
    text = str(value).strip().lower()
    if text not in _REWARDS:
        raise UserError(f"{where}: {name} is {_short(value)}, accepted are 0, 1, 0.0, 1.0, true, false")
    return _REWARDS[text]


def _first(row: Mapping[str, Any], names: tuple[str, ...], what: str, where: str) -> str:
    for name in names:
        if name in row:
            return name
    has = ", ".join(str(name) for name in row if name is not None)
    raise UserError(f"{where}: no {what} among {_short(has)}; accepted names are {', '.join(names)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
