"""Verifiers by name, so that a worker process can be told which one to use; each is loaded when first asked for.

Beside the names of `GRADERS`, `package.module:function` names a verifier of one's own, a function as below.
"""

import functools
import importlib
from collections.abc import Callable

from rlvr_jax.errors import UserError
from rlvr_jax.tasks.task import Verdict

GRADERS = ("gsm8k", "gsm8k:strict", "math")
_QUICK = {"gsm8k", "gsm8k:strict"}
WARM_UP = {"math": ((r"\boxed{\sec^2 y}", r"\tan^2 y + 1"), (r"\boxed{10}", r"\sum_{k=1}^{4} k"))}
"""(completion, gold) that make a verifier's libraries load what they load at first use."""


@functools.cache
def load_grader(name: str) -> Callable[[str, str], Verdict]:
    """`(completion, gold) -> verdict`; those of `GRADERS` never raise on any text.

    Raises UserError for an unknown name, or a module or function that is not there.
    """
    if name == "math":
        # SymPy takes a second to import; only those who grade with it pay.
        from rlvr_jax.tasks.math_grading import grade

        return grade
    if name in ("gsm8k", "gsm8k:strict"):
        from rlvr_jax.tasks import gsm8k

        return functools.partial(gsm8k.grade, reward="strict" if name == "gsm8k:strict" else "flexible")
    module, colon, function = name.partition(":")
    if not colon:
        raise UserError(f"verifier is {name!r}, accepted are {', '.join(GRADERS)}, package.module:function")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"verifier is {name!r}: {error}") from error


def is_slow(name: str) -> bool:
    """Whether a verdict may take long, for ever even, so that it belongs in a worker process that can be killed."""
    return name not in _QUICK
