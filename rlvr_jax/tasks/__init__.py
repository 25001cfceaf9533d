"""Tasks by name: what is asked, in which form, and who judges the answer."""

from collections.abc import Callable

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.generated import ReasoningGym
from rlvr_jax.tasks.gsm8k import make_gsm8k
from rlvr_jax.tasks.math import make_math, make_math500
from rlvr_jax.tasks.own import make_rows
from rlvr_jax.tasks.pool import VerifierPool, verifier_of
from rlvr_jax.tasks.prompting import PROMPT_FORMATS, PromptFormat, Prompting, parse_prompt_format
from rlvr_jax.tasks.svamp import make_svamp
from rlvr_jax.tasks.task import OUTCOMES, Outcome, PromptEncoder, Row, Split, Task, Verdict, in_held_out

TASKS: dict[str, Callable[[str | None, Prompting], Task]] = {
    "arithmetic": lambda data, prompting: Arithmetic(prompting),
    "gsm8k": make_gsm8k,
    "gsm8k:strict": lambda data, prompting: make_gsm8k(data, prompting, reward="strict"),
    "math": make_math,
    "math500": make_math500,
    "svamp": make_svamp,
}


def make_task(name: str, data: str | None = None, prompt_format: PromptFormat = "chat") -> Task:
    """The task of this name, `data` being a store of its rows (`stores.ACCEPTED`).

    Raises UserError when there is none, or when its generator, its data or the prompt format is not usable.
    """
    prompting = parse_prompt_format(prompt_format)
    if name.startswith("reasoning_gym:"):
        return ReasoningGym(name, prompting)
    if name.startswith("rows:"):
        return make_rows(name, data, prompting)
    if name not in TASKS:
        raise UserError(
            f"task is {name!r}, accepted are {', '.join(TASKS)}, reasoning_gym:GENERATOR,key=value,..., "
            "rows:VERIFIER,question=FIELD,answer=FIELD"
        )
    return TASKS[name](data, prompting)


__all__ = [
    "OUTCOMES",
    "PROMPT_FORMATS",
    "TASKS",
    "Outcome",
    "PromptEncoder",
    "PromptFormat",
    "Prompting",
    "Row",
    "Split",
    "Task",
    "Verdict",
    "VerifierPool",
    "in_held_out",
    "make_task",
    "verifier_of",
]
