"""The form in which a question is put to a model, as data: chat template or plain text, examples, system prompt."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rlvr_jax.errors import UserError

PromptFormat = str
"""A name in PROMPT_FORMATS, a .json file with fields of `Prompting`, or these fields themselves as a JSON object."""
Example = tuple[str, str]
"""A question and its worked solution."""
_MARK = "QUESTION-MARK-OF-THE-FRAME"


@dataclasses.dataclass(frozen=True)
class Prompting:
    """How a prompt is put together. All but the question itself is shared by all prompts of a task."""

    layout: Literal["chat", "plain"] = "chat"
    """chat: the tokenizer's chat template; plain: text alone."""
    thinking: bool = False
    """Ask a chat template that has a thinking mode for it."""
    shots: int = 0
    """Worked examples in front of the question: as earlier turns of the chat, or as plain text."""
    system: str | None = None
    """Instruction at the very front; None: the task's own, empty: none."""
    question: str = "Question: {question}\nAnswer:"
    """Plain text around a question, also that of an example, whose solution follows."""

    def __post_init__(self) -> None:
        if self.thinking and self.layout == "plain":
            raise UserError("prompt format: thinking is true with layout plain, accepted is layout chat with it")

    def prompt(self, tokenizer: Any, system: str, examples: Sequence[Example], question: str) -> tuple[str, str]:
        """(prefix, rest): what is shared by all prompts, `system` being the task's own, and what is this question's.

        Raises UserError when the tokenizer's chat template is missing or cannot do what is asked.
        """
        system = system if self.system is None else self.system
        if self.layout == "chat":
            before, after = _frame(
                tokenizer, _template(tokenizer, self.thinking), system, tuple(examples), self.thinking
            )
            return before, after.replace(_MARK, question.strip())
        worked = [f"{self._ask(asked)} {solution.strip()}" for asked, solution in examples]
        return "".join(f"{part}\n\n" for part in [system, *worked] if part), self._ask(question)

    def _ask(self, question: str) -> str:
        return self.question.replace("{question}", question)


CHAT = Prompting()
PROMPT_FORMATS = {
    "chat": CHAT,
    "chat_thinking": Prompting(thinking=True),
    "chat_few_shot": Prompting(shots=4),
    "plain": Prompting("plain"),
    "few_shot": Prompting("plain", shots=4),
}


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "layout": ("chat, plain", lambda value: value in ("chat", "plain")),
    "thinking": ("true, false", lambda value: isinstance(value, bool)),
    "shots": ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    "system": ("a text, null for the task's own", lambda value: isinstance(value, str | None)),
    "question": (
        "a text with {question} once",
        lambda value: isinstance(value, str) and value.count("{question}") == 1,
    ),
}
"""What each field of a format that a user writes may be."""


def parse_prompt_format(text: PromptFormat) -> Prompting:
    """Raises UserError for an unknown name, and for a file or object that is not one of `Prompting`'s fields."""
    if text in PROMPT_FORMATS:
        return PROMPT_FORMATS[text]
    accepted = f"{', '.join(PROMPT_FORMATS)}, or a JSON object, or a .json file with one, of {', '.join(_FIELDS)}"
    try:
        values = json.loads(Path(text).expanduser().read_text() if text.endswith(".json") else text)
    except (OSError, ValueError) as error:  # no such file, not UTF-8, not JSON
        raise UserError(f"prompt format is {text!r} ({error}); accepted are {accepted}") from error
    if not isinstance(values, dict) or not set(values) <= set(_FIELDS):
        raise UserError(f"prompt format is {text!r}; accepted are {accepted}")
    for name, value in values.items():
        may_be, fits = _FIELDS[name]
        if not fits(value):
            raise UserError(f"prompt format: {name} is {value!r}, accepted are {may_be}")
    return Prompting(**values)


def _template(tokenizer: Any, thinking: bool) -> str:
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise UserError("the model's tokenizer has no chat template; accepted is --prompt-format plain") from error
    if thinking and "enable_thinking" not in template:
        raise UserError("the model's chat template has no thinking mode; accepted is --prompt-format chat")
    return template


@functools.lru_cache(maxsize=8)
def _frame(
    tokenizer: Any, template: str, system: str, examples: tuple[Example, ...], thinking: bool
) -> tuple[str, str]:
    """The text in front of the question, and the question's mark with what follows it.

    Rendered once, not for each question: that is slow, and a question's words may occur in the template too.
    """
    import jinja2

    turns = [turn for asked, solution in examples for turn in (("user", asked), ("assistant", solution))]
    turns = ([("system", system)] if system else []) + turns + [("user", _MARK)]
    messages = [{"role": role, "content": content.strip()} for role, content in turns]
    # Templates with a thinking mode read the last argument; others ignore it.
    settings = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=template, **settings)
    except jinja2.TemplateError as error:
        raise UserError(
            f"the model's chat template refuses the prompt ({error}); accepted is a prompt format without what it "
            'refuses ("system": "" or "shots": 0), or layout plain'
        ) from error
    if text.count(_MARK) != 1:
        raise UserError(
            f"the model's chat template gives the question {text.count(_MARK)} times; accepted is layout plain"
        )
    start = text.index(_MARK)
    return text[:start], text[start:]
