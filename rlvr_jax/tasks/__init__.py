"""Tasks by name: what is asked, in which form, and who judges the answer."""

from collections.abc import Callable
from typing import Literal

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.generated import ReasoningGym
from rlvr_jax.tasks.gsm8k import make_gsm8k
from rlvr_jax.tasks.math import make_math, make_math500
from rlvr_jax.tasks.pool import VerifierPool, verifier_of
from rlvr_jax.tasks.svamp import make_svamp
from rlvr_jax.tasks.task import Outcome, PromptEncoder, Row, Split, Task, Verdict, in_held_out

PromptFormat = Literal["chat", "plain"]

TASKS: dict[str, Callable[[str | None, PromptFormat], Task]] = {
    "arithmetic": lambda data, prompt_format: Arithmetic(),
    "gsm8k": make_gsm8k,
    "gsm8k:strict": lambda data, prompt_format: make_gsm8k(data, prompt_format, reward="strict"),
    "math": make_math,
    "math500": make_math500,
    "svamp": make_svamp,
}


def make_task(name: str, data: str | None = None, prompt_format: PromptFormat = "chat") -> Task:
    """The task of this name. Raises UserError when there is none, or when its generator or data is not usable."""
    if name.startswith("reasoning_gym:"):
        return ReasoningGym(name.removeprefix("reasoning_gym:"), prompt_format)
    if name not in TASKS:
        raise UserError(f"task is {name!r}, accepted are {', '.join(TASKS)}, reasoning_gym:GENERATOR")
    return TASKS[name](data, prompt_format)


__all__ = [
    "TASKS",
    "Outcome",
    "PromptEncoder",
    "PromptFormat",
    "Row",
    "Split",
    "Task",
    "Verdict",
    "VerifierPool",
    "in_held_out",
    "make_task",
    "verifier_of",
]
