"""Prompt formats as data: templates, thinking, examples, system prompts, plain text, one beginning of sequence."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from experiments import show_prompts
from rlvr_jax.errors import UserError
from rlvr_jax.models import open_model
from rlvr_jax.tasks import PROMPT_FORMATS, PromptEncoder, Prompting, make_task, parse_prompt_format

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}\n{% endfor %}"
    "[assistant] {% if enable_thinking is defined and not enable_thinking %}<no thought>{% endif %}"
)


def byte_tokenizer(*, adds_beginning, template=None):
    """Every byte a token; `<s>` in front of a text or not."""
    vocabulary = {"<s>": 0, **{c: i + 1 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if adds_beginning:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=template)


@pytest.fixture
def task_of(tmp_path):
    rows = [{"question": f"What is {i} + {i}?", "answer": f"<<{i}+{i}={2 * i}>>Twice.\n#### {2 * i}"} for i in range(9)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": " a ", "answer": "#### 7"}) + "\n")
    return lambda prompt_format: make_task("gsm8k", str(tmp_path), prompt_format)


SYSTEM = "Solve the problem step by step. Write the final answer, a number alone, after ####."
SHOTS = '{{"layout": "{}", "shots": 2, "system": "{}"}}'
CASES = {
    "chat": (f"[system] {SYSTEM}\n[user] ", "a\n[assistant] <no thought>"),
    "chat_thinking": (f"[system] {SYSTEM}\n[user] ", "a\n[assistant] "),
    "plain": (f"{SYSTEM}\n\n", "Question:  a \nAnswer:"),
    SHOTS.format("chat", ""): (
        "[user] What is 0 + 0?\n[assistant] Twice.\n#### 0\n[user] What is 1 + 1?\n[assistant] Twice.\n#### 2\n[user] ",
        "a\n[assistant] <no thought>",
    ),
    SHOTS.format("plain", "Add."): (
        "Add.\n\n"
        "Question: What is 0 + 0?\nAnswer: Twice.\n#### 0\n\nQuestion: What is 1 + 1?\nAnswer: Twice.\n#### 2\n\n",
        "Question:  a \nAnswer:",
    ),
    '{"layout": "plain", "system": "", "question": "Q {x} {question} A"}': ("", "Q {x}  a  A"),
}


@pytest.mark.parametrize("prompt_format", CASES)
def test_prefix_and_rest_of_each_format(task_of, prompt_format):
    task = task_of(prompt_format)
    tokenizer = byte_tokenizer(adds_beginning=False, template=TEMPLATE)
    # The question's one letter also stands in the template.
    assert task.prompt(task.row("held_out", 0), tokenizer) == CASES[prompt_format]


def test_examples_are_not_asked_in_training(task_of):
    task = task_of("few_shot")
    assert task.size("train") == 5
    assert {task.row("train", i).id for i in range(10)} == {4, 5, 6, 7, 8}
    assert [question for question, _ in task.rows.examples] == [f"What is {i} + {i}?" for i in range(4)]
    assert task_of("plain").size("train") == 9
    many = task_of('{"layout": "plain", "shots": 12}')
    with pytest.raises(UserError, match="gsm8k has 9 train rows to take 12 shots from; accepted is less"):
        many.prompt(many.row("held_out", 0), None)


def test_generators_give_examples_of_their_own():
    task = make_task("reasoning_gym:chain_sum", prompt_format='{"layout": "plain", "shots": 3, "system": ""}')
    prefix, _ = task.prompt(task.row("train", 0), None)
    assert prefix.count("Question:") == 3
    asked = {task.row("train", i).question for i in range(50)}
    assert all(question in prefix and answer in prefix for question, answer in task.examples)
    assert not asked & {question for question, _ in task.examples}


@pytest.mark.parametrize("prompt_format", ["chat", "plain", '{"layout": "plain", "system": ""}'])
@pytest.mark.parametrize("adds_beginning", [True, False])
@pytest.mark.parametrize("in_template", [True, False])
def test_exactly_one_beginning_of_sequence(task_of, prompt_format, adds_beginning, in_template):
    task = task_of(prompt_format)
    tokenizer = byte_tokenizer(adds_beginning=adds_beginning, template=("<s>" if in_template else "") + TEMPLATE)
    row = task.row("held_out", 0)
    encoder = PromptEncoder(task, tokenizer, [row])
    prompts = encoder.encode([row])
    tokens = [*encoder.prefix.tolist(), *prompts.tokens[prompts.mask].tolist()]
    expected = adds_beginning or (in_template and prompt_format == "chat")
    assert tokens.count(0) == int(expected)
    assert (tokens[0] == 0) == expected
    assert encoder.in_one_piece(row)


@pytest.mark.parametrize("prompt_format", [name for name in PROMPT_FORMATS if name != "chat_thinking"])
def test_real_tokens_apart_are_those_of_the_whole(task_of, prompt_format):
    model = open_model("embedded:smollm2-135m-instruct")
    task = task_of(prompt_format)
    rows = [task.row(split, i) for split in ("train", "held_out") for i in range(task.size(split))]
    encoder = PromptEncoder(task, model.tokenizer, rows)
    assert all(encoder.in_one_piece(row) for row in rows)
    text = "".join(task.prompt(rows[0], model.tokenizer))
    assert (text.count("<|im_start|>assistant") > 0) == prompt_format.startswith("chat")


def merging_tokenizer(first, second):
    """Bytes, but these two neighbours are one token."""
    bytes_and_pair = [*sorted(pre_tokenizers.ByteLevel.alphabet()), first + second]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(bytes_and_pair)}, [(first, second)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("first", "second", "end_of_prefix"),
    [
        (".", "\u010a", "#.\u010a\u010a"),  # a stop and the line break behind it
        ("\u010a", "\u010a", "#.\u010a\u010a"),
        ("\u010a", "Q", "#.\u010a"),  # a line break and the word behind it
    ],
)
def test_blanks_lie_where_the_tokenizer_has_them(task_of, first, second, end_of_prefix):
    tokenizer = merging_tokenizer(first, second)
    task = task_of("plain")
    row = task.row("held_out", 0)
    encoder = PromptEncoder(task, tokenizer, [row])
    assert "".join(tokenizer.convert_ids_to_tokens(encoder.prefix.tolist())).endswith(end_of_prefix)
    assert encoder.in_one_piece(row)


def test_differences_from_the_whole_are_seen(task_of):
    """No cut at a blank keeps a token that joins letters across it."""
    task = task_of('{"layout": "plain", "system": "Ad", "question": "d{question}"}')
    tokenizer = merging_tokenizer("\u010a", "d")
    row = task.row("held_out", 0)
    encoder = PromptEncoder(task, tokenizer, [row])
    assert encoder.in_one_piece(row)
    encoder._cut += 1
    assert not encoder.in_one_piece(row)


def test_templates_that_cannot_do_what_is_asked(task_of):
    row = task_of("chat").row("held_out", 0)

    def fails(template, prompt_format, message):
        with pytest.raises(UserError, match=message):
            task_of(prompt_format).prompt(row, byte_tokenizer(adds_beginning=False, template=template))

    fails(None, "chat", "no chat template; accepted is --prompt-format plain")
    fails("{{ messages }}", "chat_thinking", "no thinking mode; accepted is --prompt-format chat")
    fails("{{ raise_exception('no system role') }}", "chat", "refuses the prompt .no system role.; accepted is")
    fails("{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}", "chat", "the question 2 times")


def test_formats_are_read_from_a_file_or_refused(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text('{"layout": "plain", "shots": 8}')
    assert parse_prompt_format(str(file)) == Prompting("plain", shots=8)
    for text, message in [
        ("chatty", "accepted are chat, chat_thinking, chat_few_shot, plain, few_shot, or a JSON object"),
        (str(tmp_path / "absent.json"), "No such file"),
        ('{"shot": 1}', "of layout, thinking, shots, system, question"),
        ('{"shots": -1}', "shots is -1, accepted are a whole number, 0 or more"),
        ('{"layout": "xml"}', "layout is 'xml', accepted are chat, plain"),
        ('{"layout": "plain", "thinking": true}', "thinking is true with layout plain"),
        ('{"question": "Q:"}', "question is 'Q:', accepted are a text with {question} once"),
        ('{"system": 3}', "system is 3, accepted are a text"),
    ]:
        with pytest.raises(UserError, match=message):
            parse_prompt_format(text)
    with pytest.raises(UserError, match="arithmetic has one prompt"):
        make_task("arithmetic", prompt_format="few_shot")


def test_show_prompts_shows_each_format(call, task_of, tmp_path):
    model = "embedded:smollm2-135m-instruct"
    task = task_of("plain")
    tokenizer = open_model(model).tokenizer
    for prompt_format in ("chat", "few_shot"):
        arguments = ["gsm8k", model, "--data", tmp_path, "--prompt-format", prompt_format, "--rows", 2, "--json"]
        status, out, _ = call(show_prompts, *arguments)
        shown = json.loads(out.splitlines()[-1])
        assert (status, shown["in_one_piece"]) == (0, [True, True])
        task = task_of(prompt_format)
        for i, own in enumerate(shown["prompts"]):
            whole = tokenizer.encode("".join(task.prompt(task.row("train", i), tokenizer)))
            np.testing.assert_array_equal([*shown["prefix"], *own], whole)
