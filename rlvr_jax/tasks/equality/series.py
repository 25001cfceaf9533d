"""Sums, products, integrals and limits: rare in answers, and read by Math-Verify's LaTeX parser."""

import re

import sympy

from rlvr_jax.tasks.equality.brackets import Unreadable

_SERIES = re.compile(r"\\(?:sum|prod|int|lim|iint|oint)(?![A-Za-z])")
_LONGEST = 200


def is_series(text: str) -> bool:
    return _SERIES.search(text) is not None


def read_series(text: str) -> sympy.Expr:
    """The value, computed where SymPy can. Raises Unreadable for what is long, and many errors for what is no formula.

    Numbers of four digits are refused, so that no sum has very many terms.
    """
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    if len(text) > _LONGEST or re.search(r"[0-9]{4}", text):
        raise Unreadable("series too long")
    settings = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    value = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=settings)
    # That parser reads decimals as floats; ours are exact.
    return sympy.nsimplify(value.doit(), rational=True)
