"""An answer in canonical spelling to what it says: a value, words, a collection, a region, a matrix, a relation."""

import functools
import re

import sympy

from rlvr_jax.tasks.equality import units
from rlvr_jax.tasks.equality.brackets import Unreadable, enclosed, split
from rlvr_jax.tasks.equality.formula import formula
from rlvr_jax.tasks.equality.meaning import (
    Answer,
    Choice,
    Collection,
    Grid,
    Numeral,
    Ratio,
    Region,
    Relation,
    Value,
    Words,
)
from rlvr_jax.tasks.equality.notation import LONGEST
from rlvr_jax.tasks.equality.regions import ascending, points_of, region_of

_SIGNS = {"=", "<", ">", "\\le", "\\ge", "\\ne", "\\equiv"}
_SEPARATORS = {",", ";", "\\and", "\\or"}
_MATRIX = re.compile(r"(.*?)\\begin\s*\{([pbBvV]?matrix|array)\}\s*(?:\{[lcr| ]*\})?(.*)\\end\s*\{\2\}", re.DOTALL)
_NUMERAL = re.compile(
    r"([0-9][0-9A-Fa-f]*)\s*_\s*(?:\{\s*(?:\\text\s*\{)?\s*(?:base\s*)?([0-9]{1,2})[\s}]*|([0-9]{1,2}))"
)
_CHOICE = re.compile(r"\(?\s*(?:\\text\s*\{)?\s*\(?\s*([A-H])\s*\)?\s*\}?\s*\)?")
_LABELLED = re.compile(r"(?:\\text\s*\{\s*\(([A-H])\)\s*\}|\(([A-H])\))\s*:?\s*([^\s(].*)", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_QUANTITY = re.compile(
    r"(.*?)\s*((?:\\text\s*\{[^{}]*\}|\\percent|\\degrees)(?:\s*\^\s*\{?[0-9]\}?|\s*/\s*|\s*\\text\s*\{[^{}]*\})*)",
    re.DOTALL,
)
_BARE_UNIT = re.compile(
    r"(.*[0-9})])\s*([A-Za-z]{2,}(?:\s*[A-Za-z]{2,}){0,3}(?:\s*\^\s*\{?[0-9]\}?)?(?:\s*/\s*[A-Za-z]+)?)", re.DOTALL
)
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_NUMBERED = re.compile(r"[A-Za-z]{3,}\.?(?: [A-Za-z0-9]{1,12}){1,2}")
_EITHER_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MODULUS = re.compile(r"(.*?)\s*\(?\s*(?:\\[pb]?mod|mod)\s*\{?\s*([0-9]+)\s*\}?\s*\)?", re.DOTALL)
_CURRENCY = re.compile(r"\\(dollar|euro|pounds)(?![A-Za-z])\s*")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|(?:all )?real numbers?|all reals")
_EMPTY = re.compile(r"\\emptyset|\\\{\s*\\\}|(?:the )?empty set")


@functools.lru_cache(8192)
def read(text: str) -> Answer:
    """What a canonical text says. Raises Unreadable for what is no answer."""
    if not re.search(r"[0-9A-Za-z]|\\\{\s*\\\}", text) or len(text) > LONGEST:
        raise Unreadable("empty" if len(text) <= LONGEST else "too long")
    return _read(text)


def _read(text: str) -> Answer:
    text = text.strip().rstrip(".,; ")
    if not text:
        raise Unreadable("empty part")
    text = _before_approximation(text)
    choice = _CHOICE.fullmatch(text)
    if choice:
        return Words(choice[1]) if text != choice[1] else Value(formula(text), None, text)
    labelled = _LABELLED.fullmatch(text)
    if labelled:
        return Choice(labelled[1] or labelled[2], _read(labelled[3]))
    for name, pattern in ((sympy.S.Reals, _REALS), (sympy.S.EmptySet, _EMPTY)):
        if pattern.fullmatch(_TEXT.sub(r"\1", text).strip()):
            return Region(name)
    memberships, found = split(text, {"\\in"})
    if found:
        return _read(memberships[-1])
    parts, separators = split(text, _SEPARATORS)
    if separators:
        return _list([part for part in parts if part], separators)
    pair = enclosed(text)
    if pair and pair[0] == "\\{":
        return _set(pair[1])
    sides, signs = split(text, _SIGNS)
    if signs:
        return _relation(sides, signs)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix[1].strip(), matrix[3])
    if _EITHER_SIGN.search(text):
        return _both_signs(text)
    pieces, found = split(text, {"\\cup", "\\setminus", "\\cap"})
    if found:
        return _combine(pieces, found)
    numeral = _NUMERAL.fullmatch(text)
    if numeral:
        return Numeral(numeral[1].upper(), int(numeral[2] or numeral[3]))
    if pair and pair[0] in ("(", "[", "{"):
        return _bracketed(*pair)
    return _ratio(text) or _words(text) or _value(text)


def _before_approximation(text: str) -> str:
    parts, found = split(text, {"\\approx"})
    # The exact value stands in front: "1/3 \\approx 0.33"; but "x \\approx 0.33" has none.
    return next((part for part in parts if re.search("[0-9]", part)), text) if found else text


def _list(parts: list[str], separators: list[str]) -> Answer:
    if len(parts) < 2:
        if not parts:
            raise Unreadable("empty list")
        return _read(parts[0])
    items: list[Answer] = []
    for part in parts:
        item = Words("...") if part == "\\ldots" else _read(part)
        items += item.items if isinstance(item, Collection) and item.kind == "list" else [item]
    regions = [region_of(item) if isinstance(item, Relation) else None for item in items]
    if all(region is not None for region in regions):
        join = sympy.Intersection if "\\and" in separators else sympy.Union
        return Region(join(*regions))
    return Collection("list", tuple(_without_name(items)))


def _without_name(items: list[Answer]) -> list[Answer]:
    """`n=1, 2, 3` and `n=1, n=2, n=3` are 1, 2, 3; with two different names they stay equations."""
    names = [item.sides[0] if isinstance(item, Relation) and item.signs == ("=",) else None for item in items]
    if names[0] is None or not is_name(names[0]) or set(names[1:]) - {None, names[0]}:
        return items
    return [item.sides[-1] if name is not None else item for item, name in zip(items, names, strict=True)]


def _matrix(factor: str, inside: str) -> Grid:
    rows = [[formula(cell.strip()) for cell in split(row, {"&"})[0]] for row in split(inside, {"\\row"})[0] if row]
    if not rows or len({len(row) for row in rows}) != 1:
        raise Unreadable("matrix with uneven rows")
    matrix = sympy.ImmutableMatrix(rows)
    if factor:
        matrix = (-1 if factor == "-" else formula(factor)) * matrix
    return Grid(matrix)


def _relation(sides: list[str], signs: list[str]) -> Answer:
    if not sides[0] and signs == ["="]:
        return _read(sides[1])
    answers = []
    for place, side in enumerate(sides):
        try:
            answers.append(_read(side))
        except Unreadable:
            # A left side that is only a name may be anything, such as "\\triangle ABC" or "P(X = 2)".
            if place or signs[0] != "=" or re.search(r"[-+*/^]", side) or not side:
                raise
            answers.append(Words(side))
    return Relation(tuple(answers), tuple(signs))


def _both_signs(text: str) -> Collection:
    upper = _EITHER_SIGN.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _EITHER_SIGN.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    items: list[Answer] = []
    for one in (upper, lower):
        answer = _read(one.replace("+ -", "-"))
        items += answer.items if isinstance(answer, Collection) and answer.kind == "list" else [answer]
    return Collection("list", tuple(items))


def _combine(pieces: list[str], operators: list[str]) -> Region:
    points = _points(_read(pieces[0]))
    for piece, operator in zip(pieces[1:], operators, strict=True):
        more = _points(_read(piece))
        join = {"\\cup": sympy.Union, "\\cap": sympy.Intersection, "\\setminus": sympy.Complement}[operator]
        points = join(points, more)
    return Region(points)


def _points(answer: Answer) -> sympy.Set:
    points = points_of(answer)
    if points is None:
        raise Unreadable("no set")
    return points


def is_name(answer: Answer) -> bool:
    """Whether a left side only names what stands on the right: a letter, f(x), a product or quotient of letters."""
    if isinstance(answer, Words):
        return True
    if isinstance(answer, Collection):
        return all(is_name(item) for item in answer.items)
    if not isinstance(answer, Value):
        return False
    factors = sympy.Mul.make_args(answer.expression)
    return all(
        factor.is_Symbol or factor.is_Function or (factor.is_Pow and factor.exp == -1 and factor.base.is_Symbol)
        for factor in factors
    )


def _set(inside: str) -> Answer:
    condition = split(inside, {"\\mid", "|", ":"})[0]
    if len(condition) == 2:
        return _read(condition[1])
    answer = _read(inside)
    listed = isinstance(answer, Collection) and answer.kind == "list"
    return Collection("set", answer.items if listed else (answer,))


def _bracketed(opening: str, inside: str, closing: str) -> Answer:
    parts, separators = split(inside, {",", ";"})
    if not separators:
        return _read(inside)
    if opening == "{":
        return _read(inside)
    items = tuple(_read(part) for part in parts)
    if (opening, closing) == ("(", ")") or len(items) != 2:
        return Collection("tuple", items)
    ends = [item.expression for item in items if isinstance(item, Value)]
    if len(ends) != 2 or not ascending(*ends):
        return Collection("tuple", items)
    return Region(sympy.Interval(*ends, opening == "(", closing == ")"))


def _ratio(text: str) -> Ratio | None:
    parts, found = split(text, {":"})
    return Ratio(tuple(_read(part) if part != "\\ldots" else Words("...") for part in parts)) if found else None


def _words(text: str) -> Answer | None:
    bare = re.sub(r"\s+", " ", _TEXT.sub(r" \1 ", text)).strip()
    several = re.split(r"\s*,\s*(?:and\b|or\b)?\s*|\s+(?:and|or)\s+", bare)
    if len(several) > 1 and all(re.fullmatch(r"[A-Za-z]+", word) for word in several):
        return Collection("list", tuple(Words(word) for word in several))
    letters = re.fullmatch(r"[A-Za-z][A-Za-z' -]*", bare)
    if letters and (text.startswith("\\text") or len(bare) > 3 or " " in bare):
        return Words(bare)
    if _NUMBERED.fullmatch(bare):
        return Words(bare)
    return _read(bare) if _TEXT.fullmatch(text) else None


def _value(text: str) -> Value:
    """A formula with the unit behind it, or the currency in front of it."""
    currency = _CURRENCY.search(text)
    name = {"dollar": "dollar", "euro": "euro", "pounds": "sterling"}[currency[1]] if currency else None
    text = _CURRENCY.sub("", text).strip()
    modulus = _MODULUS.fullmatch(text)
    if modulus:
        return Value(formula(modulus[1].strip()), f"mod {modulus[2]}", text)
    for pattern in (_QUANTITY, _BARE_UNIT):
        match = pattern.fullmatch(text)
        if match and match[1].strip():
            words = re.findall(r"[A-Za-z]+", match[2])
            if _ANGLE.search(match[1]) and "\\degrees" in match[2]:
                continue
            plain = len(words[0]) > 3 and not re.search(r"[A-Za-z]", match[1])
            if pattern is _QUANTITY or units.known(words[-1]) or plain:
                return Value(formula(match[1].strip()), units.unit(match[2]) or name, text)
    return Value(formula(text), name, text)
