"""Brackets of a formula: where one closes, and what stands outside all of them."""

import re


class Unreadable(Exception):
    """A text that is no answer that could be compared. Never leaves this package."""


DEEPEST = 40
OPENING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_CLOSING = set(OPENING.values())
PIECE = re.compile(r"\\text\s*\{[^{}]*\}|\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.|.", re.DOTALL)


def depths(text: str, start: int = 0) -> list[tuple[int, int, str]]:
    """(place, depth behind it, piece) of each command, word or character. Raises Unreadable beyond `DEEPEST`."""
    pieces, depth = [], 0
    for match in PIECE.finditer(text, start):
        depth += (match[0] in OPENING or match[0].startswith("\\begin")) - (
            match[0] in _CLOSING or match[0].startswith("\\end")
        )
        if not 0 <= depth <= DEEPEST:
            raise Unreadable("brackets do not match" if depth < 0 else "brackets too deep")
        pieces.append((match.start(), depth, match[0]))
    if depth and start == 0:
        raise Unreadable("brackets do not match")
    return pieces


def split(text: str, separators: set[str]) -> tuple[list[str], list[str]]:
    """Parts between those separators that stand outside brackets, and the separators; parts may be empty."""
    parts, found, begin = [], [], 0
    for place, depth, piece in depths(text):
        if depth == 0 and piece in separators:
            parts.append(text[begin:place].strip())
            found.append(piece)
            begin = place + len(piece)
    return [*parts, text[begin:].strip()], found


def enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets, of two kinds perhaps, holds the whole text."""
    pieces = depths(text)
    if not pieces or pieces[0][1] != 1 or len(pieces) < 2 or pieces[0][2] not in OPENING:
        return None
    if any(depth == 0 for _, depth, _ in pieces[:-1]):
        return None
    last = pieces[-1]
    return pieces[0][2], text[len(pieces[0][2]) : last[0]].strip(), last[2]
