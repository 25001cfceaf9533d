"""What tokens write, against the tokenizers' own decoding and against transformers' reading of a vocabulary."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

from rlvr_jax.errors import UserError
from rlvr_jax.models.token_bytes import token_bytes

TEXT = "Ünï 日本€ 👍🏽\n\tif x:  y"


def tokenizer_of(tokens, decoder, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.decoder, tokenizer.pre_tokenizer = decoder, pre_tokenizer
    tokenizer.add_special_tokens([AddedToken("<|im_end|>"), AddedToken("<《User》>")])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("two words")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def byte_level():
    pieces = ["Ġif", "æĹ", "¥æľ¬", "ĊĊ", "ðŁijį"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return tokenizer_of([*alphabet, *pieces], decoders.ByteLevel(), pre_tokenizers.ByteLevel(add_prefix_space=False))


@pytest.fixture(scope="module")
def sentencepiece():
    """As Llama 2 has it."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁if", "日", "x", "▁▁y", "\n"]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return tokenizer_of(tokens, decoders.Sequence(steps), None)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_bytes_of_tokens_are_what_decoding_gives(kind, request):
    tokenizer = request.getfixturevalue(kind)
    written = token_bytes(tokenizer, 400)
    assert len(written) == 400
    assert written[len(tokenizer) :] == [b""] * (400 - len(tokenizer))
    if kind == "byte_level":
        assert sorted(written[:256]) == [bytes([byte]) for byte in range(256)]
        ids = tokenizer.encode(TEXT)
        assert b"".join(written[token] for token in ids).decode() == TEXT
    generator = np.random.default_rng(0)
    whole = [place for place, text in enumerate(written) if place > 256 or (text and text.isascii())]
    for _ in range(50):
        ids = [token for token in generator.choice(whole, 12).tolist() if token < len(tokenizer)]
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        joined = b"".join(written[token] for token in ids).decode(errors="replace")
        # Decoding by itself takes a blank from the very beginning.
        assert (joined.removeprefix(" ") if kind == "sentencepiece" else joined) == text


@pytest.mark.parametrize(("kind", "mode"), [("byte_level", "byte_level"), ("sentencepiece", "byte_fallback")])
def test_bytes_of_tokens_are_transformers(kind, mode, request):
    tokenizer = request.getfixturevalue(kind)
    texts, places = StopStringCriteria.clean_tokenizer_vocab(tokenizer, stop_string_matching_mode=mode)
    written = token_bytes(tokenizer, len(tokenizer))
    assert [written[place] for place in places] == list(texts)


def test_other_tokenizers_are_refused():
    tokenizer = tokenizer_of(["a", "##b"], decoders.WordPiece(), None)
    with pytest.raises(UserError, match="the tokenizer decodes by WordPiece; accepted are byte-level BPE"):
        token_bytes(tokenizer, 4)
    with pytest.raises(UserError, match="the tokenizer decodes by None"):
        token_bytes(object(), 4)
