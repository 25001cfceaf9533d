"""Tasks whose questions are a stored dataset: declared by its source, a system prompt and a verifier."""

from typing import Any, Literal

from rlvr_jax.tasks.graders import is_slow, load_grader
from rlvr_jax.tasks.rows import Source, StoredRows
from rlvr_jax.tasks.task import Row, Split, Verdict, chat_prompt


class StoredTask:
    """Questions of `source`, put under the system prompt; `grader` names the verifier of their answers."""

    stop = ()

    def __init__(
        self,
        name: str,
        source: Source,
        grader: str,
        system: str,
        max_new_tokens: int,
        data: str | None = None,
        prompt_format: Literal["chat", "plain"] = "chat",
    ):
        self.name, self.system, self.max_new_tokens, self.prompt_format = name, system, max_new_tokens, prompt_format
        self.grader, self.worker_grader = grader, grader if is_slow(grader) else None
        self.rows = StoredRows(source, data)

    def row(self, split: Split, index: int, seed: int = 0) -> Row:
        return self.rows.row(split, index, seed)

    def size(self, split: Split) -> int:
        return self.rows.size(split)

    def prompt(self, row: Row, tokenizer: Any) -> tuple[str, str]:
        if self.prompt_format == "chat":
            return chat_prompt(tokenizer, self.system, row.question)
        return f"{self.system}\n\n", f"Question: {row.question}\nAnswer:"

    def verify(self, row: Row, completion: str) -> Verdict:
        return load_grader(self.grader)(completion, row.answer)
