"""Stop strings against a plain search in the text so far, over vocabularies that cut it anywhere."""

import numpy as np
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.sampling import checked_stop_strings, stop_strings
from rlvr_jax.sampling.stop_strings import FOUND, START

WORDS = ["ab", "bab", "aabaab", "é", "日本", "本b", "a€a"]


def vocabulary(generator, size=60):
    """Tokens of one to five bytes cut out of texts of the words' bytes, some in the middle of a character, and none."""
    text = b"".join(generator.choice([*(word.encode() for word in WORDS), b"a", b"b", b"\xe6", b"\x82"], 400))
    starts = generator.integers(0, len(text) - 5, size)
    return [text[start : start + length] for start, length in zip(starts, generator.integers(1, 6, size), strict=True)]


@pytest.mark.parametrize("words", [WORDS[:1], WORDS[1:3], WORDS[:2], WORDS[3:], WORDS], ids="|".join)
def test_ends_where_the_text_first_holds_a_string(words):
    generator = np.random.default_rng(0)
    tokens = [*vocabulary(generator), b""]
    found = stop_strings(words, tokens)
    sequences = generator.integers(0, len(tokens), (2000, 12))
    states = np.full(2000, START, np.int32)
    texts = [b""] * 2000
    for column in sequences.T:
        states = found.after(states, column)
        texts = [text + tokens[token] for text, token in zip(texts, column, strict=True)]
        np.testing.assert_array_equal(states == FOUND, [any(word.encode() in text for word in words) for text in texts])
    assert 0.1 < (states == FOUND).mean() < 1


def test_every_set_of_strings_has_the_same_shape_up_to_a_power_of_two():
    tokens = [bytes([byte]) for byte in range(256)]
    shapes = [stop_strings(words, tokens).next_state.shape for words in (["a"], WORDS, ["x" * 32], ["x" * 255])]
    assert shapes == [(32, 256), (32, 256), (64, 256), (256, 256)]
    assert stop_strings((), tokens) is None
    assert stop_strings(("ab",), tokens).next_state[START, ord("b")] == START


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["a", ""], r"stop is \['a', ''\]: one is empty, accepted are strings of one character or more"),
        (["é" * 100, "x" * 56], "stop has 256 bytes of UTF-8 in all its strings, accepted are at most 255"),
        (["\ud800"], "is no text, accepted is Unicode"),
        ("User:", "stop is 'User:', accepted is a tuple of strings"),
    ],
)
def test_strings_that_are_refused(strings, message):
    with pytest.raises(UserError, match=message):
        checked_stop_strings(strings)
