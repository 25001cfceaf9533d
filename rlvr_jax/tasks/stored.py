"""Tasks whose questions are a stored dataset: declared by its source, a system prompt and a verifier."""

from typing import Any

from rlvr_jax.tasks.graders import is_slow, load_grader
from rlvr_jax.tasks.prompting import CHAT, Prompting
from rlvr_jax.tasks.rows import Source, StoredRows
from rlvr_jax.tasks.task import Row, Split, Verdict


class StoredTask:
    """Questions of `source`, put under the system prompt; `grader` names the verifier of their answers.

    Examples in the prompt are the first train rows of the store; they are not asked in training.
    """

    stop = ()

    def __init__(
        self,
        name: str,
        source: Source,
        grader: str,
        system: str,
        max_new_tokens: int,
        data: str | None = None,
        prompting: Prompting = CHAT,
    ):
        self.name, self.system, self.max_new_tokens, self.prompting = name, system, max_new_tokens, prompting
        self.grader, self.worker_grader = grader, grader if is_slow(grader) else None
        self.rows = StoredRows(source, data, prompting.shots)

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        return self.rows.row(split, index, seed)

    def size(self, split: Split) -> int:
        return self.rows.size(split)

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        return self.prompting.prompt(tokenizer, self.system, self.rows.examples, row.question)

    def verify(self, row: Row, completion: str) -> Verdict:
        return load_grader(self.grader)(completion, row.answer)
