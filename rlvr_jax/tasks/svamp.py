"""SVAMP (arXiv 2103.07191): one-step word problems with a number as answer, put and judged as those of GSM8K."""

from rlvr_jax.tasks.gsm8k import SYSTEM, worked
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.rows import Source
from rlvr_jax.tasks.stored import StoredTask

_SOURCE = Source(
    "svamp",
    {"train": (("ChilleD/SVAMP", None, "train"),), "held_out": (("ChilleD/SVAMP", None, "test"),)},
    question=("question", "question_concat"),
    answer=("answer", "Answer"),
    worked=worked,
)


def make_svamp(data: str | None = None, prompting: Prompting = CHAT) -> StoredTask:
    """The public train split for training and the public test split as held-out questions."""
    return StoredTask("svamp", _SOURCE, "gsm8k", SYSTEM, 256, data, prompting)
