"""Questions of one's own with a chosen verifier, as `rows:VERIFIER` with `--data`."""

import dataclasses

from rlvr_jax.errors import UserError
from rlvr_jax.tasks import gsm8k, math
from rlvr_jax.tasks.graders import GRADERS, load_grader
from rlvr_jax.tasks.names import parse_name
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.rows import Source
from rlvr_jax.tasks.stored import StoredTask
from rlvr_jax.tasks.stores import ACCEPTED

_PLAIN = Source("rows", {"train": (), "held_out": ()}, question=("question", "problem"), answer=("answer",))
_GSM8K = dataclasses.replace(_PLAIN, gold=gsm8k.gold, worked=gsm8k.worked)
_KINDS = {
    "gsm8k": (_GSM8K, gsm8k.SYSTEM, 256),
    "gsm8k:strict": (_GSM8K, gsm8k.SYSTEM, 256),
    "math": (dataclasses.replace(_PLAIN, gold=math.gold, worked=math.worked), math.SYSTEM, 1024),
}
"""Source, system prompt and length limit that go with a verifier."""


def make_rows(name: str, data: str | None = None, prompting: Prompting = CHAT) -> StoredTask:
    """`rows:VERIFIER,question=FIELD,answer=FIELD,solution=FIELD`, all fields optional.

    The verifier is one of `graders.GRADERS`, or `package.module:function`, whose gold is the whole answer field and
    which has no system prompt of its own. `solution` is read for examples in the prompt alone. Raises UserError for
    unknown verifiers and parameters, and without data.
    """
    verifier, fields = parse_name(name.removeprefix("rows:"))
    known = ("question", "answer", "solution")
    if not set(fields) <= set(known):
        raise UserError(
            f"task is {name!r}, accepted are rows:VERIFIER and after it {', '.join(f'{key}=FIELD' for key in known)}"
        )
    if verifier not in GRADERS:
        load_grader(verifier)
    if data is None:
        raise UserError(f"task is {name!r} without data; accepted is --data with {ACCEPTED}")
    source, system, max_new_tokens = _KINDS.get(verifier, (_PLAIN, "", 1024))
    source = dataclasses.replace(source, name=name, **{key: (str(field),) for key, field in fields.items()})
    return StoredTask(name, source, verifier, system, max_new_tokens, data, prompting)
