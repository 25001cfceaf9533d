"""Names of tasks with parameters: `NAME,key=value,key=value`."""

import json
from typing import Any

from rlvr_jax.errors import UserError


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """The name and its parameters; a value is read as JSON where it can be (`3`, `true`), else
    it is text. Raises UserError for a parameter without a value or one that is given twice.
    """
    name, *pairs = text.split(",")
    parameters: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or key in parameters:
            raise UserError(
                f"task is {text!r}: {pair!r} is not understood, accepted is NAME,key=value,... with each key once"
            )
        try:
            parameters[key] = json.loads(value)
        except json.JSONDecodeError:
            parameters[key] = value
    return name, parameters
