"""One spelling for the many that LaTeX and plain text have for the same answer."""

import re
from collections.abc import Callable

LONGEST = 2000
"""Characters of an answer; what is longer is not read."""

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ",
        "\u00f7": r"\div ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx ",
        "\u221e": r"\infty ", "\u03c0": r"\pi ", "\u03b8": r"\theta ", "\u221a": r"\sqrt ", "\u222a": r"\cup ",
        "\u2229": r"\cap ", "\u2205": r"\emptyset ", "\u2208": r"\in ", "\u00b0": r"^\circ ", "\u00b1": r"\pm ",
        "\u00b2": "^2", "\u00b3": "^3", "\u20ac": r"\euro ", "\u00a3": r"\pounds ", "\u00bd": r"\frac{1}{2}",
        "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "\u2018": "'", "\u2019": "'",
    }
)  # fmt: skip

_TEXT = (
    r"\\(?:text|textbf|textit|textrm|textnormal|texttt|textsf|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname)\*?"
)
_MULTIPLES = {"dozen": "12", "hundred": "10^{2}", "thousand": "10^{3}", "million": "10^{6}", "billion": "10^{9}"}
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?:\[[^\]]*\])?", r"\\row "),
        # Sizes, styles, invisible marks. A protected comma, or one with a negative space, groups digits.
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?(?=[^A-Za-z.]|\\|$)", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|hfill|noindent|bf|rm)(?![A-Za-z])", " "),
        (r"(?<=[0-9])(?:\s*\{\s*,\s*\}|\s*,?\s*\\!\s*,?\s*|\\,)\s*(?=[0-9]{3}(?![0-9]))", ""),
        (r"\\!", ""),
        (r"\\(?:[,;:> ]|q?quad(?![A-Za-z])|enspace(?![A-Za-z])|thinspace(?![A-Za-z]))|~|\\\n", " "),
        (r"\{\s*,\s*\}", ","),
        # One name for one thing.
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\(?:leq|leqslant|le)(?![A-Za-z])|<=|=<", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:neq|ne)(?![A-Za-z])|!=", r"\\ne "),
        (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:langle|lparen)(?![A-Za-z])", "("),
        (r"\\(?:rangle|rparen)(?![A-Za-z])", ")"),
        (r"\\(?:lbrack)(?![A-Za-z])", "["),
        (r"\\(?:rbrack)(?![A-Za-z])", "]"),
        (r"\\(?:lvert|rvert|vert)(?![A-Za-z])", "|"),
        (r"\\(?:cdots|dots|dotsc|dotsb)(?![A-Za-z])|\\ldots\.?|\.\.\.\.?|\u2026", r"\\ldots "),
        (r"\\(?:approxeq|simeq)(?![A-Za-z])", r"\\approx "),
        (r"\\bar(?![A-Za-z])", r"\\overline"),
        (r"\\varepsilon(?![A-Za-z])", r"\\epsilon "),
        (r"\\varphi(?![A-Za-z])", r"\\phi "),
        (r"\\(?:Z|R|Q|N|C)(?![A-Za-z])", lambda match: rf"\mathbb{{{match[0][1]}}}"),
        (r"\*\*", "^"),
        (r"\\(?:ast|cdot|times)(?![A-Za-z])", "*"),
        (r"\\div(?![A-Za-z])", "/"),
        # Decoration.
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])|\\textdegree(?![A-Za-z])", r" \\degrees "),
        (r"\\\$", r"\\dollar "),
        (r"\$", " "),
        (r"\\%|%", r" \\percent "),
        (r"\\(?:boxed|fbox)(?=\s*\{)|\\(?:text)?color\s*\{[a-z]+\}", ""),
        (rf"^\s*{_TEXT}\s*\{{[^{{}}]*(?:\bis|\bare|:)\s*\}}", ""),
        # Upright letters are letters if they are no units; other upright words are words.
        (rf"{_TEXT}\s*\{{\s*([abdefijknopqrtuvwxyz])\s*\}}", r"\1"),
        (rf"{_TEXT}\s*\{{\s*(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|gcd|lcm|max|min)\s*\}}", r"\\\1 "),
        (rf"{_TEXT}\s*\{{\s*(?:,\s*)?(and|or)\s*\}}", r" \\\1 "),
        (rf"{_TEXT}\s*\{{\s*to\s*\}}|(?<=[0-9]) to (?=[0-9])", ":"),
        (
            rf"(?<=[0-9])\s*(?:{_TEXT}\s*\{{\s*)?(dozen|hundred|thousand|million|billion)(?![A-Za-z])(?:\s*\}})?",
            lambda match: "*" + _MULTIPLES[match[1]],
        ),
        (rf"{_TEXT}\s*(?=\{{)", r"\\text"),
    )
]
_PLAIN_NAMES = re.compile(
    r"(?<![A-Za-z\\])(sqrt|pi|theta|infinity|infty|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp)(?![A-Za-z])"
)
_PLAIN_WORDS = re.compile(r"(?<![A-Za-z\\{])(and|or|union(?=\s*[\[({\\])|in(?=\s*[\[({\\]))(?![A-Za-z])", re.IGNORECASE)
_GROUPED = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_SPACED = re.compile(r"(?<![0-9.,_^])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])")
_PLAIN_MIXED = re.compile(r"(?<![0-9.,/^_])([0-9]{1,9})[ \t]+([0-9]{1,9})/([0-9]{1,9})(?![0-9./])")


def canonical(text: str) -> str:
    """The answer in one spelling. Not yet read: whatever is no answer comes out as some other text, never an error."""
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _outside_words(text, _plain_text)
    text = _join_digits(text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;: ").lstrip(",;: ")


def _plain_text(text: str) -> str:
    """What people write where they know no LaTeX."""
    text = _PLAIN_NAMES.sub(lambda match: "\\" + {"infinity": "infty"}.get(match[1], match[1]) + " ", text)
    text = _PLAIN_WORDS.sub(lambda match: {"union": r" \cup "}.get(match[1].lower(), f" \\{match[1].lower()} "), text)
    text = re.sub(r"(?<=[)\]}])\s*U\s*(?=[(\[{\\])", r" \\cup ", text)
    return _PLAIN_MIXED.sub(_mixed, text)


def _mixed(match: re.Match[str]) -> str:
    return rf"{match[1]}\frac{{{match[2]}}}{{{match[3]}}}" if int(match[2]) < int(match[3]) else match[0]


def _outside_words(text: str, change: Callable[[str], str]) -> str:
    """Applies `change` to everything but the contents of `\\text{...}`."""
    return "".join(
        part if part.startswith("\\text{") else change(part) for part in re.split(r"(\\text\{[^{}]*\})", text)
    )


def _join_digits(text: str) -> str:
    """1,234 and 1 234 are one number; within brackets, commas and spaces separate."""
    out, depth, start = [], 0, 0
    for match in re.finditer(r"\\[{}]|[()\[\]]|$", text):
        part = text[start : match.start()]
        if depth == 0:
            part = _SPACED.sub(lambda m: m[0].replace(" ", ""), _GROUPED.sub(lambda m: m[0].replace(",", ""), part))
        out += [part, match[0]]
        depth = max(0, depth + (match[0] in ("(", "[", "\\{")) - (match[0] in (")", "]", "\\}")))
        start = match.end()
    return "".join(out)
