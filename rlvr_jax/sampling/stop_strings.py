"""Strings that end a completion, however its text is cut into tokens.

All strings are looked for at once by the automaton of Aho and Corasick (1975) over bytes. It is made on the host, as a
table over whole tokens, so that the sampler looks one number up for each token it draws.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from rlvr_jax.errors import UserError
from rlvr_jax.records import AnyArray

START = 0
"""The state before the first token of a completion."""
FOUND = 1
"""The state from the token on that completes a string."""
_MOST_BYTES = 255
_LEAST_STATES = 32


class StopStrings(NamedTuple):
    """The automaton. Tables of one shape, whatever the strings, share a compiled sampler."""

    next_state: UInt8[AnyArray, "states vocab"]
    """After a token in a state. The number of states is a power of two, from 32 to 256."""

    def after(self, states: Int[AnyArray, "*batch"], tokens: Int[AnyArray, "*batch"]) -> Int[Array, "*batch"]:
        return jnp.asarray(self.next_state)[states, tokens].astype(states.dtype)


def stop_strings(strings: Sequence[str], tokens: Sequence[bytes]) -> StopStrings | None:
    """What looks for the strings in a text of tokens, given what each token writes; None where there are none.

    A string that ends within a token is found at that token. Raises UserError as `checked_stop_strings`.
    """
    sought = checked_stop_strings(strings)
    if not sought:
        return None
    of_bytes = _automaton(sought)
    lengths = np.array([len(token) for token in tokens])
    order = np.argsort(-lengths, kind="stable")
    table = np.repeat(np.arange(len(of_bytes), dtype=np.uint8)[:, None], len(tokens), 1)
    # All tokens at once, byte by byte; the longest ones come first, so that those that go on are in front.
    for place in range(lengths.max(initial=0)):
        going_on = order[: np.count_nonzero(lengths > place)]
        table[:, going_on] = of_bytes[table[:, going_on], [tokens[i][place] for i in going_on]]
    return StopStrings(table)


def checked_stop_strings(strings: Sequence[str]) -> list[bytes]:
    """Of strings that a user gave, in UTF-8. Raises UserError for an empty one, and where they are too long."""
    if isinstance(strings, str):
        raise UserError(f"stop is {strings!r}, accepted is a tuple of strings")
    try:
        sought = [text.encode() for text in strings]
    except UnicodeEncodeError as error:
        raise UserError(f"stop is {list(strings)}: {error.object!r} is no text, accepted is Unicode") from None
    if not all(sought):
        raise UserError(f"stop is {list(strings)}: one is empty, accepted are strings of one character or more")
    if (total := sum(map(len, sought))) > _MOST_BYTES:
        raise UserError(f"stop has {total} bytes of UTF-8 in all its strings, accepted are at most {_MOST_BYTES}")
    return sought


def _automaton(sought: Sequence[bytes]) -> UInt8[np.ndarray, "states 256"]:
    """The state after a byte. A state is the longest end of the text that is the beginning of a string."""

    def found(text: bytes) -> bool:
        return text.endswith(tuple(sought))

    beginnings = {text[:length]: None for text in sought for length in range(1, len(text))}
    # START is the empty beginning; where a string is found nothing comes after it.
    numbers = {b"": START} | {text: FOUND + 1 + i for i, text in enumerate(beginnings)}
    states = max(_LEAST_STATES, 1 << len(numbers).bit_length())
    table = np.full((states, 256), START, np.uint8)
    table[FOUND] = FOUND
    for beginning, number in numbers.items():
        # Every other byte leads to the start.
        for byte in set(b"".join(sought)):
            text = beginning + bytes([byte])
            if found(text):
                table[number, byte] = FOUND
                continue
            while text not in numbers:
                text = text[1:]
            table[number, byte] = numbers[text]
    return table
