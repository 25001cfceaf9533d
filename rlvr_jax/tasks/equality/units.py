"""Units of measure by one name each, to tell a missing unit from a contradicting one."""

import re

_SAME = {
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre", "m": "meter metre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "s": "sec second", "min": "minute mins",
    "h": "hr hour hrs", "day": "", "week": "wk", "month": "mo", "year": "yr yrs", "g": "gram gramme", "mg": "milligram",
    "kg": "kilogram kilo kgs", "lb": "pound lbs", "oz": "ounce", "L": "l liter litre", "mL": "ml milliliter millilitre",
    "gal": "gallon", "cent": "c", "dollar": "usd buck", "euro": "eur", "sterling": "gbp", "percent": "percentage pct",
    "degree": "deg", "radian": "rad",
}  # fmt: skip
_NAMES = {alias: name for name, aliases in _SAME.items() for alias in [name, *aliases.split()]}
_NO_UNIT = {"", "unit", "of", "about", "total", "in total", "approximately", "exactly"}
_SPEEDS = {"mph": "mi / h", "kmph": "km / h", "kph": "km / h", "kmh": "km / h"}
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cu": "3", "cubed": "3"}


def unit(text: str) -> str | None:
    """The unit that a text behind a number names, or None when it names none: "square inches" gives "in^2"."""
    text = re.sub(r"\([^()]*\)", " ", text)
    text = re.sub(r"\b(?:mph|kmph|kph|kmh)\b", lambda match: _SPEEDS[match[0]], text)
    words = re.findall(r"[A-Za-z]+|\^\s*\{?[0-9]\}?|/", text.replace("\\text", " ").replace("\\", " "))
    parts, power, divided = [], "", False
    for word in words:
        word = re.sub(r"[\s{}]", "", word)
        if word in ("/", "per"):
            divided = True
        elif word[0] == "^":
            if parts:
                parts[-1] += word
        elif word.lower() in _POWERS:
            if word.lower().endswith("ed") and parts:
                parts[-1] += "^" + _POWERS[word.lower()]
            else:
                power = "^" + _POWERS[word.lower()]
        elif word.lower() not in ("a", "an", "the"):
            parts.append(("/" if divided else "") + _singular(word) + power)
            power, divided = "", False
    named = " ".join(parts)
    return None if re.sub(r"\^.*", "", named) in _NO_UNIT else named


def known(word: str) -> bool:
    """Whether a bare word of two letters or more is a unit."""
    return len(word) > 1 and (_singular(word) in _SAME or word in _SPEEDS)


def _singular(word: str) -> str:
    lower = word if word in _NAMES else word.lower()
    for candidate in (lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if candidate in _NAMES:
            return _NAMES[candidate]
    return lower.removesuffix("s") if len(lower) > 3 else lower
