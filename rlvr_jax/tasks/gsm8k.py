"""GSM8K (arXiv 2110.14168): grade-school word problems whose gold answer ends in `#### N`."""

import functools
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.answers import after_marker, committed_passage, own_answer
from rlvr_jax.tasks.task import Row, Split, Verdict, chat_prompt, in_held_out, right_or_wrong

_SYSTEM = "Solve the problem step by step. Write the final answer, a number alone, after ####."
_HUB_ID = "openai/gsm8k"
_FILES = {"train": "train.jsonl", "held_out": "test.jsonl"}


class GSM8K:
    """The public train split for training and the public test split as held-out questions.

    `data` is a folder with train.jsonl and test.jsonl, one JSONL file (an eighth of it, chosen by question text, is
    held out), or `None` for the hub. Each row needs `question` and `answer`.
    """

    stop = ()
    max_new_tokens = 256  # the cap of the paper's precursor runs

    def __init__(
        self,
        data: str | None = None,
        prompt_format: Literal["chat", "plain"] = "chat",
        reward: Literal["flexible", "strict"] = "flexible",
    ):
        self.name = "gsm8k" if reward == "flexible" else "gsm8k:strict"
        self.prompt_format, self.reward = prompt_format, reward
        self._rows = {split: functools.cache(lambda split=split: _load(data, split)) for split in _FILES}
        self._order = functools.lru_cache(2)(self._shuffled)

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        """Held-out rows in file order; train rows in a new order each epoch, decided by (seed, epoch)."""
        rows = self._rows[split]()
        if split == "held_out":
            return rows[index]
        epoch, place = divmod(index, len(rows))
        return rows[self._order(seed, epoch)[place]]

    def _shuffled(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(self._rows["train"]()))

    def size(self, split: Split) -> int:
        return len(self._rows[split]())

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        if self.prompt_format == "chat":
            return chat_prompt(tokenizer, _SYSTEM, row.question)
        return f"{_SYSTEM}\n\n", f"Question: {row.question}\nAnswer:"

    def verify(self, row: Row, completion: str) -> Verdict:
        return grade(completion, row.answer, self.reward)


def grade(completion: str, gold: str, reward: str = "flexible") -> Verdict:
    """Compares exactly, as fractions. `strict` reads only what follows `####`; `flexible` also other ways to commit."""
    text = own_answer(completion)
    expected = _number(gold)
    readings = {"strict": _committed(after_marker(text)), "flexible": _committed(_final(text))}
    scores = {name: value is not None and value == expected for name, value in readings.items()}
    if expected is None:
        return Verdict("unparsable", "no number in the gold", scores)
    if readings[reward] is None:
        return Verdict("unparsable", "no number", scores)
    return right_or_wrong(scores[reward], scores)


_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3}){1,8}(?:\.[0-9]{1,30})?|[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30}"
# A minus directly behind a digit, letter or bracket is a subtraction, not a sign.
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)\]}}])-)?(?<![\w.,])\$?(?P<minus>-)?(?P<top>{_DIGITS})(?![0-9])(?:/(?P<bottom>[0-9]{{1,30}})(?![0-9.,/]{{0,30}}[0-9]))?"
)
_LONGEST_ENDING = 20_000
"""Characters at the end of a completion that are searched for its last number."""
_ALTERNATIVE = re.compile(r"[^0-9.(]{0,20}\b(?:or|and)\b[^0-9.(]{0,20}|\s*[,;]\s*")


def _final(text: str) -> str | None:
    """The passage that commits to an answer; without one, the last number."""
    passage = committed_passage(text, holding="[0-9]")
    if passage is not None:
        return passage.text
    numbers = list(_NUMBER.finditer(_plain(text[-_LONGEST_ENDING:])))
    return numbers[-1][0] if numbers else None


def _committed(passage: str | None) -> Fraction | None:
    """The one number a passage commits to; None for no number or for alternatives such as "18 or 20"."""
    if passage is None:
        return None
    passage = _plain(passage).rpartition("=")[2]
    numbers = list(_NUMBER.finditer(passage))
    if not numbers:
        return None
    if len(numbers) > 1 and _ALTERNATIVE.fullmatch(passage[numbers[0].end() : numbers[1].start()]):
        return None
    return _value(numbers[0])


def _number(text: str) -> Fraction | None:
    match = _NUMBER.search(_plain(text))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    top, bottom = Fraction(match["top"].replace(",", "")), int(match["bottom"] or 1)
    if bottom == 0:
        return None
    return (-top if match["sign"] or match["minus"] else top) / bottom


def _plain(text: str) -> str:
    """Without typographic minus, LaTeX spacing, currency escapes, fractions and boxes."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\!", "").replace("{,}", ",").replace("\\,", "")
    text = re.sub(r"\\[dt]?frac\{([0-9]{1,30})\}\{([0-9]{1,30})\}", r"\1/\2", text)
    return re.sub(r"\\boxed\s*\{([^{}]*)\}", r"\1", text)


def _load(data: str | None, split: Split) -> list[Row]:
    rows = _from_hub(split) if data is None else _from_path(Path(data).expanduser(), split)
    if not rows:
        raise UserError(f"gsm8k data is {data!r}: no rows for {split}")
    return [Row(i, row["question"], row["answer"].rpartition("####")[2].strip()) for i, row in enumerate(rows)]


def _from_path(path: Path, split: Split) -> list[dict[str, str]]:
    if path.is_dir():
        return _read_jsonl(path / _FILES[split])
    return [row for row in _read_jsonl(path) if in_held_out(row["question"]) == (split == "held_out")]


def _read_jsonl(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise UserError(
            f"gsm8k data: {file} does not exist; accepted is a JSONL file or a folder with train.jsonl and test.jsonl"
        )
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}, line {number}: not JSON ({error.msg})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("question", "answer")):
            raise UserError(f"{file}, line {number}: accepted are objects with the strings question and answer")
        rows.append(row)
    return rows


def _from_hub(split: Split) -> list[dict[str, str]]:
    import datasets

    try:
        return datasets.load_dataset(_HUB_ID, "main", split="train" if split == "train" else "test").to_list()
    # The hub's client raises errors of several libraries (its own, HTTP, socket): all mean "not to be had".
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{_HUB_ID} could not be fetched from the hub ({reason}); "
            "accepted is also --data with a JSONL file or a folder"
        ) from error
