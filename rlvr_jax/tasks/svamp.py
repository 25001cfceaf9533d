"""SVAMP (arXiv 2103.07191): one-step word problems with a number as answer, put and judged as those of GSM8K."""

from typing import Literal

from rlvr_jax.tasks.gsm8k import SYSTEM
from rlvr_jax.tasks.rows import Source
from rlvr_jax.tasks.stored import StoredTask

_SOURCE = Source(
    "svamp",
    {"train": (("ChilleD/SVAMP", None, "train"),), "held_out": (("ChilleD/SVAMP", None, "test"),)},
    question=("question", "question_concat"),
    answer=("answer", "Answer"),
)


def make_svamp(data: str | None = None, prompt_format: Literal["chat", "plain"] = "chat") -> StoredTask:
    """The public train split for training and the public test split as held-out questions."""
    return StoredTask("svamp", _SOURCE, "gsm8k", SYSTEM, 256, data, prompt_format)
