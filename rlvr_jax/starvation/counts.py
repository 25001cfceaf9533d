"""Per-prompt counts: n samples of a prompt, c of them right. What all functions of counts accept, and how they refuse.

Checks look at known values only; inside jit they find nothing.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

Numbers = Shaped[AnyArray, "..."] | np.generic | int | float | list | tuple
"""A number or an array of them, in any form that users have."""


def require_counts(name: str, n: Any, c: Any, least: int = 1, why: str = "") -> None:
    """Whole numbers with `least <= n` and `0 <= c <= n`; n and c broadcast.

    Raises UserError with the first bad pair and its place; `why` is added where n is too small.
    """
    if _is_traced(n, c):
        return
    try:
        n, c = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(c, np.float64))
    except (TypeError, ValueError):
        raise UserError(
            f"n and c of {name} have shapes {np.shape(n)} and {np.shape(c)}: "
            "accepted are whole numbers of shapes that broadcast"
        ) from None
    _refuse(name, "n", n, (n < least) | (n != np.floor(n)) | ~np.isfinite(n), f"whole numbers from {least}{why}")
    bad = ~((c >= 0) & (c <= n) & (c == np.floor(c)))
    _refuse(name, "c", c, bad, "whole numbers from 0 to n (how many of the n samples are right)")


def require_shares(name: str, what: str, values: Any) -> None:
    """Every value lies in [0, 1]. Raises UserError with the first bad one and its place."""
    if not _is_traced(values):
        values = np.asarray(values, np.float64)
        _refuse(name, what, values, ~((values >= 0) & (values <= 1)), "values in [0, 1]")


def require_group_size(name: str, group_size: Any, least: int = 1, most: int | None = None) -> None:
    """A whole number of samples per prompt. Raises UserError for any other."""
    is_whole = isinstance(group_size, int | np.integer) and not isinstance(group_size, bool)
    if not is_whole or group_size < least or (most is not None and group_size > most):
        upper = "" if most is None else f" to {most}"
        raise UserError(f"group_size of {name} is {group_size}, accepted are whole numbers from {least}{upper}")


def _is_traced(*values: Any) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values))


def _refuse(name: str, what: str, values: np.ndarray, bad: np.ndarray | np.bool_, accepted: str) -> None:
    if bad.any():
        place = np.argwhere(bad)[0]
        where = f" at {place.tolist()}" if place.size else ""
        raise UserError(f"{what} of {name} is {values[tuple(place)]:g}{where}, accepted are {accepted}")
