"""Tasks by name: what is asked, in which form, and who judges the answer."""

from collections.abc import Callable
from typing import Literal

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.generated import ReasoningGym
from rlvr_jax.tasks.gsm8k import GSM8K
from rlvr_jax.tasks.task import PromptEncoder, Row, Split, Task, Verdict, in_held_out

PromptFormat = Literal["chat", "plain"]

TASKS: dict[str, Callable[[str | None, PromptFormat], Task]] = {
    "arithmetic": lambda data, prompt_format: Arithmetic(),
    "gsm8k": GSM8K,
    "gsm8k:strict": lambda data, prompt_format: GSM8K(data, prompt_format, reward="strict"),
}


def make_task(name: str, data: str | None = None, prompt_format: PromptFormat = "chat") -> Task:
    """The task of this name. Raises UserError when there is none, or when its generator or data is not usable."""
    if name.startswith("reasoning_gym:"):
        return ReasoningGym(name.removeprefix("reasoning_gym:"), prompt_format)
    if name not in TASKS:
        raise UserError(f"task is {name!r}, accepted are {', '.join(TASKS)}, reasoning_gym:GENERATOR")
    return TASKS[name](data, prompt_format)


__all__ = ["TASKS", "PromptEncoder", "PromptFormat", "Row", "Split", "Task", "Verdict", "in_held_out", "make_task"]
