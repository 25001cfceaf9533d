"""Prompts as token arrays: shared prefix, length limits, stop tokens, chat templates."""

import numpy as np
import pytest

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import PromptEncoder, Row, make_task

TASK = make_task("arithmetic")


@pytest.fixture
def rows():
    return [TASK.row("train", i) for i in range(50)]


def test_prefix_and_prompt_join_to_the_whole_text(tiny_model, rows):
    encoder = PromptEncoder(TASK, tiny_model.tokenizer, rows)
    prompts = encoder.encode(rows)
    for row, tokens, mask in zip(rows, prompts.tokens, prompts.mask, strict=True):
        whole = tiny_model.tokenizer.encode("".join(TASK.prompt(row, None)))
        np.testing.assert_array_equal(np.concatenate([encoder.prefix, tokens[mask]]), whole)
    assert prompts.ids.tolist() == list(range(50))
    assert prompts.mask.all(0).any()


def test_longer_prompts_are_refused_not_cut(tiny_model, rows):
    encoder = PromptEncoder(TASK, tiny_model.tokenizer, rows, max_prompt_tokens=6)
    with pytest.raises(UserError, match=r"question 99 has 10 prompt tokens of its own, accepted are 1 to 6"):
        encoder.encode([Row(99, "100 + 10 =", "110")])


def test_stop_strings_must_be_single_tokens(tiny_model, rows):
    encoder = PromptEncoder(TASK, tiny_model.tokenizer, rows)
    newline = tiny_model.tokenizer.encode("\n")
    assert encoder.stop_tokens((0,)).tolist() == [0, *newline]
    encoder.task = type("Other", (), {"name": "other", "stop": ("ab",)})
    with pytest.raises(UserError, match="stop 'ab' is 2 tokens"):
        encoder.stop_tokens((0,))
