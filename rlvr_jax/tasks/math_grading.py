"""The verifier of MATH: which words of a completion are its answer, and whether they equal the gold."""

import itertools
import re
from collections.abc import Iterator

from rlvr_jax.tasks.answers import committed_passage, own_answer
from rlvr_jax.tasks.equality import Comparison, compare
from rlvr_jax.tasks.task import Verdict, right_or_wrong

_SPAN = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$((?:[^$\n\\]|\\.)+)\$", re.DOTALL)
_SENTENCE_END = re.compile(r"\.(?=\s+[A-Z]|\s*\Z)|\n\s*\n|[?!](?=\s)")
_COPULA = re.compile(r"(?:\b(?:is|are|equals|gives|obtain|get)\b|(?<=[A-Za-z]):|(?<=[A-Za-z]:\*\*))(?=[\s\\$])")
_CLAUSE = re.compile(r",?\s+(?:where|which|since|because|if|when)\b")
_ADVERB = re.compile(
    r"(?:approximately|about|exactly|therefore|thus|then|simply|just|also|equal to|now)\s+", re.IGNORECASE
)
_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sqrt|infinity|infty|theta|sin|cos|tan|cot|sec|csc|log|exp|and)\b)[A-Za-z]{3,}"
)
_NUMBER = re.compile(r"(?<![\w.,])(?:-\s?)?(?:\\?\$)?(?:[0-9][0-9,]*)?\.?[0-9]+(?:/[0-9]+)?(?:\s?\\?%)?")


def grade(completion: str, gold: str) -> Verdict:
    """Compares the answer that a completion commits to with the gold.

    Raises nothing but MemoryError. It may take as long as SymPy likes, so it is meant for a worker that can be killed.
    """
    text = own_answer(completion)
    passage = committed_passage(text)
    if passage is None:
        candidates = _last_sentence(text)
    elif passage.kind == "box":
        candidates = iter([passage.text])
    else:
        candidates = _readings(passage.text)
    comparison = Comparison("unreadable answer", "none")
    for candidate in candidates:
        comparison = compare(gold, candidate)
        if comparison.outcome != "unreadable answer":
            break
    answers = {"reward": comparison.answer}
    if comparison.outcome == "same":
        return right_or_wrong(True, answers=answers)
    if comparison.outcome == "different":
        return Verdict("wrong", comparison.reason or "wrong", answers=answers)
    return Verdict("unparsable", f"{comparison.outcome}: {comparison.reason}", answers=answers)


def _readings(passage: str) -> Iterator[str]:
    """What a passage may mean as an answer, the whole of it first where it holds no prose."""
    if not _WORD.search(_SPAN.sub(" ", passage)) and "\n" not in passage.strip():
        yield passage
    sentence = _SENTENCE_END.split(passage.strip(), maxsplit=1)[0].strip("* ")
    clause = _CLAUSE.split(sentence, maxsplit=1)[0]
    if re.search(r"[0-9]|\\|\$", clause):
        sentence = clause
    tail = sentence
    for match in _COPULA.finditer(_blank_spans(sentence)):
        tail = sentence[match.end() :].strip("* ")
    yield from _of_tail(_ADVERB.sub("", tail, count=1) if _ADVERB.match(tail) else tail or sentence)
    yield passage


def _of_tail(tail: str) -> Iterator[str]:
    spans = list(_SPAN.finditer(tail))
    outside = _SPAN.sub(" ", tail)
    if spans and not re.search(r"[0-9]", outside):
        inside = [next(group for group in span.groups() if group is not None) for span in spans]
        between = [tail[a.end() : b.start()] for a, b in itertools.pairwise(spans)]
        if all(re.fullmatch(r"\s*(?:,|;|and|or|,\s*and|,\s*or)\s*", gap) for gap in between):
            # What follows the formula may be its unit.
            unit = re.match(r"\s*(%|[A-Za-z]{2,}[A-Za-z ]*)", tail[spans[-1].end() :])
            yield ", ".join(inside) + (f" \\text{{{unit[1]}}}" if unit and len(inside) == 1 else "")
        yield inside[-1]
        return
    yield tail
    words = list(_WORD.finditer(tail))
    if words:
        yield tail[words[-1].end() :].strip(" ,;:*")
    numbers = list(_NUMBER.finditer(tail))
    if numbers and "\\" not in tail.replace("\\$", "").replace("\\%", ""):
        yield numbers[-1][0]


def _last_sentence(text: str) -> Iterator[str]:
    """The last sentence that holds a number or a formula, read as a passage."""
    if len(text) > 4000:
        text = text[-4000:]
    for sentence in reversed(_SENTENCE_END.split(text)):
        if re.search(r"[0-9]|\\|\$", sentence):
            last_line = sentence.strip().rpartition("\n")[2] if not _SPAN.search(sentence) else sentence.strip()
            yield from _readings(last_line)
            return


def _blank_spans(text: str) -> str:
    """The same length, with formulas blanked, so that only prose is searched."""
    return _SPAN.sub(lambda match: " " * len(match[0]), text)
