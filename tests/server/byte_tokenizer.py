"""A tokenizer whose token ids are bytes, and an end token after them."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from inflight.text.parts import TokenizerParts
from inflight.text.tokenizer import Tokenizer

END = 256
VOCAB_SIZE = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab=_vocab(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(TokenizerParts(backend, (END,), (), {"eos_token": "<|end|>"}, CHAT_TEMPLATE))


def _vocab() -> dict[str, int]:
    """Byte-level BPE writes a byte as a printable character: itself if it is one, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
