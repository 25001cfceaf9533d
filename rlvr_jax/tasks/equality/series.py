"""Sums, products, integrals and limits: rare in answers, and read by Math-Verify's LaTeX parser."""

import re
import string

import sympy

from rlvr_jax.tasks.equality.bounded import number
from rlvr_jax.tasks.equality.brackets import Unreadable

_SERIES = re.compile(r"\\(?:sum|prod|int|lim|iint|oint)(?![A-Za-z])")
_LONGEST = 200
_NUMBER = re.compile(r"(\^\s*)?([0-9]+)(?:\.([0-9]+))?")
_LONGEST_NUMBER = 3
"""Digits of a number, so that no sum has very many terms."""


def is_series(text: str) -> bool:
    return _SERIES.search(text) is not None


def read_series(text: str) -> sympy.Expr:
    """The value, computed where SymPy can.

    Raises Unreadable for what is long, and errors of many kinds for what is no formula.
    """
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    # That parser reads numbers as floats, by evaluating their digits, and "2 3" as 2 + 3. It is given letters instead.
    found = list(_NUMBER.finditer(text))
    longest = max((len(match[2]) for match in found), default=0)
    if len(text) > _LONGEST or len(found) > len(string.ascii_letters) or longest > _LONGEST_NUMBER:
        raise Unreadable("series too long")
    if re.search(r"[0-9]\s+[0-9]", text):
        raise Unreadable("numbers without a sign between them")
    named, numbers, end = "", {}, 0
    for letter, match in zip(string.ascii_letters, found, strict=False):
        name = f"Q_{{q{letter}}}"
        numbers[name] = number(match[2], match[3] or "")
        named += text[end : match.start()] + (f"{match[1]}{{{name}}}" if match[1] else f" {name} ")
        end = match.end()
    settings = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    value = latex2sympy(named + text[end:], is_real=True, normalization_config=None, conversion_config=settings)
    return value.subs({x: numbers[x.name] for x in value.free_symbols if x.name in numbers}).doit()
