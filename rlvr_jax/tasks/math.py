"""MATH (arXiv 2103.03874): competition problems in seven subjects, and the 500 of them that are its usual test."""

from rlvr_jax.tasks.answers import committed_passage
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.rows import Source
from rlvr_jax.tasks.stored import StoredTask

SYSTEM = "Solve the problem step by step. Put the final answer in \\boxed{}."
_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_FIELDS = {"question": ("problem", "question"), "answer": ("answer", "solution"), "solution": ("solution",)}
_TEST = (("HuggingFaceH4/MATH-500", None, "test"),)


def gold(text: str) -> str:
    """Of a whole solution its last box; an answer alone is itself."""
    passage = committed_passage(text)
    return passage.text if passage is not None and passage.kind == "box" else text.strip()


def worked(text: str) -> str:
    """A solution, with the answer in a box where it is nothing but the answer."""
    return text.strip() if "\\boxed" in text else f"\\boxed{{{text.strip()}}}"


_TRAIN = tuple(("EleutherAI/hendrycks_math", subject, "train") for subject in _SUBJECTS)
_MATH = Source("math", {"train": _TRAIN, "held_out": _TEST}, **_FIELDS, gold=gold, worked=worked)
_MATH500 = Source("math500", {"held_out": _TEST}, **_FIELDS, gold=gold, worked=worked)


def make_math(data: str | None = None, prompting: Prompting = CHAT) -> StoredTask:
    """The 7,500 questions of the public train split for training; MATH-500, which has none of them, held out."""
    return StoredTask("math", _MATH, "math", SYSTEM, 1024, data, prompting)


def make_math500(data: str | None = None, prompting: Prompting = CHAT) -> StoredTask:
    """MATH-500 alone: held-out questions, none for training."""
    return StoredTask("math500", _MATH500, "math", SYSTEM, 1024, data, prompting)
