"""What each token of a vocabulary writes, as bytes: a token need not be whole characters."""

import json
from typing import Any

from rlvr_jax.errors import UserError

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}
"""GPT-2's alphabet, in which byte-level tokens are spelled."""
_HEXADECIMAL = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
_SENTENCEPIECE = [{"Replace", "ByteFallback", "Fuse"}, {"Replace", "ByteFallback", "Fuse", "Strip"}]


def token_bytes(tokenizer: Any, vocab_size: int) -> list[bytes]:
    """Of every token id below `vocab_size`; ids that the tokenizer does not have write nothing.

    Special tokens write their names. In sentencepiece vocabularies the blank in front of a word is part of it, also at
    the very beginning, where decoding a completion by itself takes it away.
    Raises UserError for tokenizers that are neither byte-level BPE nor sentencepiece with byte fallback.
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = {} if decoder is None else json.loads(decoder.__getstate__())
    parts = state.get("decoders", [state])
    kinds = {part.get("type") for part in parts}
    blanks = [part for part in parts if part.get("type") == "Replace"]
    if kinds == {"ByteLevel"}:
        spelled = _byte_level
    elif kinds in _SENTENCEPIECE and [(x["pattern"], x["content"]) for x in blanks] == [({"String": "▁"}, " ")]:
        spelled = _sentencepiece
    else:
        raise UserError(
            f"stop strings: the tokenizer decodes by {', '.join(map(str, sorted(kinds, key=str)))}; accepted are "
            "byte-level BPE (Llama 3, SmolLM, Qwen) and sentencepiece with byte fallback (Llama 2)"
        )
    written = [b""] * vocab_size
    for token, place in tokenizer.get_vocab().items():
        if place < vocab_size:
            written[place] = spelled(token)
    return written


def _byte_level(token: str) -> bytes:
    # As the decoder does it: a token with any other character is taken as it is.
    return bytes(map(_BYTE_OF.get, token)) if all(map(_BYTE_OF.__contains__, token)) else token.encode()


def _sentencepiece(token: str) -> bytes:
    return _HEXADECIMAL.get(token) or token.replace("▁", " ").encode()
