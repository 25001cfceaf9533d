"""Exactly what the model sees: the shared prefix, each prompt's own tokens, and what ends a completion.

python -m experiments.show_prompts gsm8k OWNER/NAME --rows 2
python -m experiments.show_prompts math OWNER/NAME --prompt-format chat_thinking
python -m experiments.show_prompts gsm8k OWNER/NAME --prompt-format '{"layout": "plain", "shots": 8, "system": ""}'

Prompt formats: chat (the model's template), chat_thinking, chat_few_shot, plain, few_shot, or a JSON object, or a .json
file with one, of layout, thinking, shots, system and question.
"""

import dataclasses
from typing import Annotated, Literal

import tyro

from experiments.command import parse, print_json, run
from rlvr_jax.models import open_model
from rlvr_jax.tasks import PromptEncoder, PromptFormat, make_task


@dataclasses.dataclass(frozen=True)
class ShowPrompts:
    """Show prompts."""

    task: Annotated[str, tyro.conf.Positional]
    model: Annotated[str, tyro.conf.Positional] = "embedded:smollm2-135m-instruct"
    data: str | None = None
    prompt_format: PromptFormat = "chat"
    """See above."""
    split: Literal["train", "held_out"] = "train"
    rows: int = 4
    seed: int = 0
    json: bool = False
    """Print token ids and texts as one JSON object on the last line."""


def main() -> None:
    arguments = parse(ShowPrompts, __doc__)
    model = open_model(arguments.model)
    task = make_task(arguments.task, arguments.data, arguments.prompt_format)
    rows = [task.row(arguments.split, i, arguments.seed) for i in range(max(arguments.rows, 1))]
    encoder = PromptEncoder(task, model.tokenizer, rows)
    prompts = encoder.encode(rows)
    own = [tokens[mask].tolist() for tokens, mask in zip(prompts.tokens, prompts.mask, strict=True)]
    stops = encoder.stop_tokens(model.eos_token_ids).tolist()
    one_piece = [encoder.in_one_piece(row) for row in rows]
    if arguments.json:
        answers = [row.answer for row in rows]
        prompts = {"prefix": encoder.prefix.tolist(), "prompts": own, "in_one_piece": one_piece}
        print_json({**prompts, "stops": stops, "answers": answers})
        return

    def pieces(ids: list[int]) -> str:
        """Each token between bars, so that spaces and line breaks show."""
        return "|".join(model.tokenizer.decode([token]).replace("\n", "\u21b5\n") for token in ids)

    print(f"prefix shared by all prompts, {len(encoder.prefix)} tokens:\n{pieces(encoder.prefix.tolist())}\n")
    for row, tokens in zip(rows, own, strict=True):
        print(f"prompt {row.id}, {len(tokens)} tokens, right answer {row.answer!r}:\n{pieces(tokens)}\n")
    apart = one_piece.count(False)
    if apart:
        print(f"{apart} of these prompts, tokenised with the prefix in one piece, would be other tokens\n")
    print(f"a completion ends at: {', '.join(repr(model.tokenizer.decode([token])) for token in stops)}")


if __name__ == "__main__":
    run(main)
