"""LaTeX or plain text of one formula to an exact SymPy expression, by recursive descent and without evaluating text.

Numbers are integers and fractions, never floats. A number followed by a proper numeric fraction is a mixed number.
Powers, factorials and binomials that would be too large are refused, not computed. Sums, products, integrals and
limits are read by Math-Verify's parser.
"""

import functools
import re
from collections.abc import Callable

import sympy

from rlvr_jax.tasks.equality.bounded import binomial, factorial, number, power
from rlvr_jax.tasks.equality.brackets import OPENING, Unreadable
from rlvr_jax.tasks.equality.series import is_series, read_series

_DEEPEST = 60
_NUMBER = re.compile(r"([0-9]*)\.([0-9]*)\\overline\s*\{\s*([0-9]+)\s*\}|(?=\.?[0-9])([0-9]*)\.?([0-9]*)")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_LETTERS = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|omega|"
    "Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|ell|hbar|triangle|angle"
)
_ACCENTS = {"vec", "hat", "overline", "tilde", "dot", "mathbb", "mathcal", "overrightarrow", "widehat", "underline"}
_ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    **{name: getattr(sympy, name) for name in (*_ANGLES, "sinh", "cosh", "tanh", "exp")},
    **{"arc" + name: getattr(sympy, "a" + name) for name in _ANGLES},
    "ln": sympy.log,
    "log": lambda x: sympy.log(x, 10),
    "max": sympy.Max, "min": sympy.Min, "gcd": sympy.gcd, "lcm": sympy.lcm,
}  # fmt: skip
_APPLIED = ("f", "g")
"""Letters that in front of a bracket are functions; other letters are factors, as in n(n+1)."""


@functools.lru_cache(4096)
def formula(text: str) -> sympy.Expr:
    """The expression. Raises Unreadable for what is no formula, is not finite where it should be, or is too large."""
    try:
        value = read_series(text) if is_series(text) else _Reader(text).whole()
    except (Unreadable, MemoryError):
        raise
    # SymPy raises many kinds of errors for values without sense (undefined, of the wrong type, too deep).
    except Exception as error:
        raise Unreadable(f"no value: {type(error).__name__}") from None
    if not isinstance(value, sympy.Expr) or value.has(sympy.nan, sympy.zoo) or value.has(sympy.Float):
        raise Unreadable("no value")
    return value


class _Reader:
    """Reads from `place` on; every method leaves it behind what it has read."""

    def __init__(self, text: str):
        self.text, self.place, self.depth, self.in_absolute = text, 0, 0, False
        self.in_angle = False

    def whole(self) -> sympy.Expr:
        value = self.sum()
        if self._peek():
            raise Unreadable(f"unexpected {self._peek()[:20]!r}")
        return value

    def _peek(self) -> str:
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place :]

    def _take(self, *options: str) -> str | None:
        rest = self._peek()
        for option in options:
            if rest.startswith(option):
                self.place += len(option)
                return option
        return None

    def _need(self, option: str) -> None:
        if not self._take(option):
            raise Unreadable(f"{option!r} is missing")

    def sum(self) -> sympy.Expr:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Unreadable("too deep")
        value = self._signed_product()
        while operator := self._take("+", "-"):
            term = self._signed_product()
            value = value + term if operator == "+" else value - term
        self.depth -= 1
        return value

    def _signed_product(self) -> sympy.Expr:
        return -self.product() if self._take("-", "+") == "-" else self.product()

    def product(self) -> sympy.Expr:
        value = self.factor()
        while True:
            if self._take("*"):
                value = value * self._signed_factor()
            elif self._take("/"):
                value = value / self._signed_factor()
            elif self._starts_factor():
                value = value * self.factor()
            else:
                return value

    def _signed_factor(self) -> sympy.Expr:
        return -self.factor() if self._take("-") else self.factor()

    def _starts_factor(self) -> bool:
        """Whether a factor follows without a sign. A number does so only behind a factorial: "2 3" is no product."""
        rest = self._peek()
        if not rest or rest[0] in ")]}+-*/^_!,;:=<>'&." or (rest[0] == "|" and self.in_absolute):
            return False
        if rest[0].isdigit():
            return self.text[: self.place].rstrip().endswith("!")
        return not rest.startswith(("\\degrees", "\\}", "\\rfloor", "\\rceil", "\\percent", "\\text"))

    def factor(self) -> sympy.Expr:
        value = self._base()
        while True:
            if self._take("!"):
                value = factorial(value)
            elif self._take("\\degrees"):
                value = value * sympy.pi / 180 if self.in_angle else value
            elif self._take("^"):
                value = power(value, self._exponent())
            else:
                return value

    def _exponent(self) -> sympy.Expr:
        exponents = [self._argument(signed=True)]
        while self._take("^"):
            exponents.append(self._argument(signed=True))
        # Towers are built from the top.
        return functools.reduce(lambda top, below: power(below, top), reversed(exponents))

    def _base(self) -> sympy.Expr:
        rest = self._peek()
        digits = _NUMBER.match(rest)
        if digits:
            self.place += digits.end()
            return self._mixed(_value(digits))
        command = _COMMAND.match(rest)
        if command:
            self.place += command.end()
            return self._command(command[1])
        for opening, closing in OPENING.items():
            if opening in ("(", "[", "{") and self._take(opening):
                value = self.sum()
                self._need(closing)
                return value
        if self._take("|"):
            self.in_absolute = True
            value = self.sum()
            self._need("|")
            self.in_absolute = False
            return sympy.Abs(value)
        if rest[:1].isascii() and rest[:1].isalpha():
            self.place += 1
            return self._name(rest[0])
        raise Unreadable(f"unexpected {rest[:20]!r}")

    def _mixed(self, whole: sympy.Rational) -> sympy.Rational:
        match = re.match(
            r"\s*\\frac\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))",
            self.text[self.place :],
        )
        if not match or not whole.is_Integer:
            return whole
        top, bottom = int(match[1] or match[2]), int(match[3] or match[4])
        if top >= bottom:
            raise Unreadable("a mixed number with an improper fraction")
        self.place += match.end()
        return whole + sympy.Rational(top, bottom)

    def _argument(self, signed: bool = False) -> sympy.Expr:
        """What a fraction, a root or a power takes: a group in braces, or one character, or one command."""
        rest = self._peek()
        if self._take("{"):
            value = self.sum()
            self._need("}")
            return value
        if signed and self._take("("):
            value = self.sum()
            self._need(")")
            return value
        if signed and self._take("-"):
            return -self._argument()
        # In plain text 2^10 has the exponent 10; nobody means 2^1 times 0.
        if signed and (digits := _NUMBER.match(rest)):
            self.place += digits.end()
            return _value(digits)
        if rest[:1].isdigit():
            self.place += 1
            return sympy.Integer(rest[0])
        return self._base()

    def _command(self, name: str) -> sympy.Expr:
        if name == "frac":
            top, bottom = self._argument(), self._argument()
            return top / bottom
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return binomial(self._argument(), self._argument())
        if name in ("lfloor", "lceil"):
            value = self.sum()
            self._need("\\r" + name[1:])
            return sympy.floor(value) if name == "lfloor" else sympy.ceiling(value)
        if name == "pi":
            return sympy.pi
        if name == "infty":
            return sympy.oo
        if name in _FUNCTIONS:
            return self._function(name)
        if _LETTERS.fullmatch(name):
            return self._name(name)
        if name in _ACCENTS and (
            match := re.match(r"\s*\{\s*(\\?[A-Za-z]+)\s*\}|\s*([A-Za-z])", self.text[self.place :])
        ):
            self.place += match.end()
            return self._name(f"{name} {match[1] or match[2]}")
        raise Unreadable(f"unknown \\{name}")

    def _root(self) -> sympy.Expr:
        index = sympy.Integer(2)
        if self._take("["):
            index = self.sum()
            self._need("]")
        if self._take("("):
            radicand = self.sum()
            self._need(")")
        else:
            digits = re.match(r"[0-9]+", self._peek())
            if digits:
                self.place += digits.end()
                radicand = number(digits[0])
            else:
                radicand = self._argument()
        if index.is_Integer and index % 2 == 1 and index > 0 and radicand.is_Rational:
            return sympy.real_root(radicand, index)
        return power(radicand, 1 / index)

    def _function(self, name: str) -> sympy.Expr:
        base = self._argument() if name == "log" and self._take("_") else None
        exponent = self._argument(signed=True) if self._take("^") else None
        outside, self.in_angle = self.in_angle, name in _ANGLES
        if self._peek()[:1] in ("(", "[", "{"):
            closing = OPENING[self._take("(", "[", "{")]
            arguments = [self.sum()]
            while self._take(","):
                arguments.append(self.sum())
            self._need(closing)
        else:
            arguments = [self.factor()]
            while self._starts_factor() and not self._at_function():
                arguments[0] *= self.factor()
        self.in_angle = outside
        if exponent == -1 and "arc" + name in _FUNCTIONS:
            return _FUNCTIONS["arc" + name](*arguments)
        value = sympy.log(*arguments, base) if base is not None else _FUNCTIONS[name](*arguments)
        return value if exponent is None else power(value, exponent)

    def _at_function(self) -> bool:
        command = _COMMAND.match(self._peek())
        return command is not None and command[1] in _FUNCTIONS

    def _name(self, name: str) -> sympy.Expr:
        if name == "e":
            return sympy.E
        if name == "i":
            return sympy.I
        if self._take("_"):
            index = re.match(r"\{((?:[^{}]|\{[^{}]*\})*)\}|\\?[A-Za-z0-9]", self._peek())
            if not index:
                raise Unreadable("index is missing")
            self.place += index.end()
            name += "_" + re.sub(r"\s", "", index[1] or index[0])
        while self._take("'"):
            name += "'"
        if name in _APPLIED and self._take("("):
            argument = self.sum()
            self._need(")")
            return sympy.Function(name)(argument)
        if several := re.match(r"\s*\(([^()]*,[^()]*)\)", self.text[self.place :]):
            self.place += several.end()
            return sympy.Function(name)(*(formula(part.strip()) for part in several[1].split(",")))
        return sympy.Symbol(name, real=True)


def _value(digits: re.Match[str]) -> sympy.Rational:
    return number(digits[1] or "", digits[2], digits[3]) if digits[3] else number(digits[4], digits[5])
