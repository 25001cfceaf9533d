"""Which part of a completion is the answer: rules that every verifier of prose shares.

A passage that commits is, the last one counting, what follows `####`, what stands in `<answer>` tags, and what stands
in a complete box; without one of those, a bold end of the text; without that, a sentence of the kind "the answer is".
"""

import dataclasses
import re
from typing import Literal

_RUN_ON = re.compile(r"\n[ \t*]*(?:Question|Problem|User|Human|Q)\b[^\n:]{0,12}:|<\|im_start\|>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:(?=\{)|(-?[0-9]+(?:\.[0-9]+)?))")
_TAG = re.compile(r"<answer>([^<]{0,2000})</answer>", re.IGNORECASE)
_BOLD_END = re.compile(r"\*\*([^*\n]{1,200})\*\*\W*\Z")
_ANSWER_IS = re.compile(r"\banswer\b\**(?:\s+is\b\s*:?|\s*:)\**\s*", re.IGNORECASE)
_BETWEEN_BOXES = re.compile(r"(?:[\s$,;&.]|\\[()\[\]]|\\quad|\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b){0,24}")

_LONGEST_SENTENCE = 2000


def own_answer(completion: str) -> str:
    """The model's answer to the question asked: after its reasoning block, before a question it invents.

    A block that is opened and never closed holds no answer.
    """
    text = completion.rpartition("</think>")[2].partition("<think>")[0]
    return _RUN_ON.split(text, maxsplit=1)[0]


def after_marker(text: str) -> str | None:
    """The rest of the line behind the last `####`; None without one."""
    _, marker, rest = text.rpartition("####")
    return rest.strip(" \t").partition("\n")[0] if marker else None


def after_marked_line(completion: str) -> str:
    """What follows the line of the own answer's last `####`: more lines, more thought, a question it invents."""
    text = own_answer(completion)
    run_on = completion.rpartition("</think>")[2].removeprefix(text)
    return text.rpartition("####")[2].strip(" \t").partition("\n")[2] + run_on


@dataclasses.dataclass(frozen=True)
class Passage:
    """The words that commit to an answer, and how they do."""

    text: str
    kind: Literal["box", "tag", "marker", "prose"]


def committed_passage(text: str, holding: str = r"\w") -> Passage | None:
    """The passage of an own answer that commits to a result, the most explicit kind first; None when none does.

    Bold and sentences count only when they hold something that the pattern `holding` finds.
    """
    explicit = [(match.start(), Passage(match[1], "tag")) for match in _TAG.finditer(text)]
    marked = after_marker(text)
    if marked is not None:
        explicit.append((text.rindex("####"), Passage(marked, "marker")))
    explicit += _last_box(text)
    if explicit:
        return max(explicit, key=lambda found: found[0])[1]
    bold = _BOLD_END.search(text[-300:])
    if bold and re.search(holding, bold[1]) and not _ANSWER_IS.search(bold[1]):
        return Passage(bold[1], "prose")
    for match in reversed(list(_ANSWER_IS.finditer(text))):
        passage = _one_line_or_display(text[match.end() : match.end() + _LONGEST_SENTENCE]).strip("* ")
        if re.search(holding, passage):
            return Passage(passage, "prose")
    return None


def _one_line_or_display(text: str) -> str:
    """The first line; of a displayed formula, all its lines."""
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if text.startswith(opening):
            return opening + text[2:].partition(closing)[0] + closing
    return text.partition("\n")[0]


def _last_box(text: str) -> list[tuple[int, Passage]]:
    """Place and content of the last complete box; of a row of boxes, their different contents as a list."""
    boxes = _boxes(text)
    if not boxes:
        return []
    row = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box[1] : row[-1][0]]
        if len(gap) > 60 or not _BETWEEN_BOXES.fullmatch(gap):
            break
        row.append(box)
    contents = list(dict.fromkeys(content for _, _, content in reversed(row)))
    return [(boxes[-1][0], Passage(", ".join(contents), "box"))]


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of all outermost complete boxes that are not empty, in one pass."""
    boxes, end = [], 0
    closing = _closing_braces(text) if "\\boxed" in text or "\\fbox" in text else {}
    for match in _BOX.finditer(text):
        start, opening = match.span()
        if start < end:
            continue
        if match[1]:
            boxes.append((start, opening, match[1]))
        elif opening in closing:
            end = closing[opening] + 1
            content = text[opening + 1 : end - 1]
            if content.strip():
                boxes.append((start, end, content))
    return boxes


def _closing_braces(text: str) -> dict[int, int]:
    """Place of the closing brace of each opening brace that has one; escaped braces do not count."""
    pairs, open_braces = {}, []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            pairs[open_braces.pop()] = match.start()
    return pairs
