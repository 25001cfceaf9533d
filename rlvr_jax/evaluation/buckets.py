"""Questions in batches of like prompt length, so that few tokens are padding and few shapes are compiled."""

import dataclasses
from collections.abc import Sequence

_MOST_SHAPES = 8
_LEAST_STEP = 16
"""Tokens; shapes that differ by less are not worth compiling twice."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Questions that are sampled together."""

    places: list[int]
    """Of the questions, in the order in which they were given."""
    prompt_length: int
    """To which all of their prompts are padded; none is longer."""


def length_buckets(lengths: Sequence[int], batch: int) -> list[Bucket]:
    """Places 0, 1, ... of prompts with these lengths, each once, in batches; the last may hold fewer.

    Prompt lengths are rounded up to eighths of the longest, so there are at most eight different ones. The longest
    come first: where memory does not suffice, that shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    longest = lengths[order[0]]
    step = max(_LEAST_STEP, -(-longest // _MOST_SHAPES))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    return [Bucket(places, min(longest, -(-lengths[places[0]] // step) * step)) for places in batches]
