"""GSM8K (arXiv 2110.14168): grade-school word problems whose gold answer ends in `#### N`."""

import re
from fractions import Fraction
from typing import Literal

from rlvr_jax.tasks.answers import after_marked_line, after_marker, committed_passage, own_answer
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.rows import Source
from rlvr_jax.tasks.stored import StoredTask
from rlvr_jax.tasks.task import Verdict, right_or_wrong


def gold(text: str) -> str:
    """What stands after the last ####; of an answer alone, itself."""
    return text.rpartition("####")[2].strip()


def worked(text: str) -> str:
    """A solution without its calculator marks (<<1+1=2>>), ended by #### and the answer."""
    text = re.sub(r"<<[^<>]{0,1000}>>", "", text).strip()
    return text if "####" in text else f"#### {text}"


SYSTEM = "Solve the problem step by step. Write the final answer, a number alone, after ####."
_SOURCE = Source(
    "gsm8k",
    {"train": (("openai/gsm8k", "main", "train"),), "held_out": (("openai/gsm8k", "main", "test"),)},
    question=("question",),
    answer=("answer",),
    gold=gold,
    worked=worked,
)


def make_gsm8k(
    data: str | None = None,
    prompting: Prompting = CHAT,
    reward: Literal["flexible", "strict"] = "flexible",
) -> StoredTask:
    """The public train split for training and the public test split as held-out questions."""
    name = "gsm8k" if reward == "flexible" else "gsm8k:strict"
    # 256 new tokens is the cap of the paper's precursor runs.
    return StoredTask(name, _SOURCE, name, SYSTEM, 256, data, prompting)


def grade(completion: str, gold: str, reward: str = "flexible") -> Verdict:
    """Compares exactly, as fractions. `strict` reads only what follows `####`; `flexible` also other ways to commit.

    `final` is `strict` where nothing goes on after the answer, a unit and a full stop apart; where text trails, None.
    """
    text = own_answer(completion)
    expected = _number(gold)
    numbers = {"strict": _committed(after_marker(text)), "flexible": _committed(_passage(text))}
    numbers["final"] = None if after_marked_line(completion).strip() else _at_end(numbers["strict"])
    readings = {name: _value(number) for name, number in numbers.items()}
    scores = {name: value is not None and value == expected for name, value in readings.items()}
    answers = {name: None if value is None else str(value) for name, value in readings.items()}
    answers["reward"] = answers[reward]
    if expected is None:
        return Verdict("unparsable", "no number in the gold", scores, answers)
    if readings[reward] is None:
        return Verdict("unparsable", "no number", scores, answers)
    return right_or_wrong(scores[reward], scores, answers)


_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3}){1,8}(?:\.[0-9]{1,30})?|[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30}"
# A minus directly behind a digit, letter or bracket is a subtraction, not a sign.
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)\]}}])-)?(?<![\w.,])\$?(?P<minus>-)?(?P<top>{_DIGITS})(?![0-9])(?:/(?P<bottom>[0-9]{{1,30}})(?![0-9.,/]{{0,30}}[0-9]))?"
)
_LONGEST_ENDING = 20_000
"""Characters at the end of a completion that are searched for its last number."""
_ALTERNATIVE = re.compile(r"[^0-9.(]{0,20}\b(?:or|and)\b[^0-9.(]{0,20}|\s*[,;]\s*")
_ARITHMETIC = re.compile(r"\s*(?:[-+*:\u00d7\u2013]|\\(?:times|cdot))\s*[$(]?[0-9]")
_MIXED = re.compile(
    r"(?<![0-9.,/])([0-9]{1,9})(?:\s+([0-9]{1,9})/([0-9]{1,9})|\s*\\[dt]?frac\{([0-9]{1,9})\}\{([0-9]{1,9})\})(?![0-9/])"
)
_SPACED = re.compile(r"(?<![0-9.,/])[0-9]{1,3}(?: [0-9]{3}){1,8}(?![0-9.,/])")
_UNIT = re.compile(r"(?:[^0-9.,:;?!]|(?<=\^)[23]|\.(?=[a-z])){0,30}+[.!]?\W*")
"""What may stand behind the answer on its line: at most 30 characters of words without a digit, then marks alone."""


def _passage(text: str) -> str | None:
    """The passage that commits to an answer; without one, the last number."""
    passage = committed_passage(text, holding="[0-9]")
    if passage is not None:
        return passage.text
    numbers = list(_NUMBER.finditer(_plain(text[-_LONGEST_ENDING:])))
    return numbers[-1][0] if numbers else None


def _committed(passage: str | None) -> re.Match[str] | None:
    """The one number a passage commits to; None for no number, for "18 or 20", and for a sum that is not worked out."""
    if passage is None:
        return None
    passage = re.sub(r"^\W*-\s+(?=\$?[0-9])", "-", _plain(passage).rpartition("=")[2])
    numbers = list(_NUMBER.finditer(passage))
    if not numbers:
        return None
    if _ARITHMETIC.match(passage, numbers[0].end()):
        return None
    if len(numbers) > 1 and _ALTERNATIVE.fullmatch(passage[numbers[0].end() : numbers[1].start()]):
        return None
    return numbers[0]


def _at_end(number: re.Match[str] | None) -> re.Match[str] | None:
    return number if number and _UNIT.fullmatch(number.string, number.end()) else None


def _number(text: str) -> Fraction | None:
    return _value(_NUMBER.search(_plain(text)))


def _value(match: re.Match[str] | None) -> Fraction | None:
    if match is None:
        return None
    top, bottom = Fraction(match["top"].replace(",", "")), int(match["bottom"] or 1)
    if bottom == 0:
        return None
    return (-top if match["sign"] or match["minus"] else top) / bottom


def _plain(text: str) -> str:
    """Without typographic minus, LaTeX spacing, currency escapes, mixed numbers, fractions and boxes."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\!", "").replace("{,}", ",").replace("\\,", "")
    text = _MIXED.sub(_improper, _SPACED.sub(lambda match: match[0].replace(" ", ""), text))
    text = re.sub(r"\\[dt]?frac\{([0-9]{1,30})\}\{([0-9]{1,30})\}", r"\1/\2", text)
    return re.sub(r"\\boxed\s*\{([^{}]*)\}", r"\1", text)


def _improper(match: re.Match[str]) -> str:
    whole, top, bottom = int(match[1]), int(match[2] or match[4]), int(match[3] or match[5])
    return f"{whole * bottom + top}/{bottom}"
