"""From a token's spelling in the vocabulary to the bytes it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import tokenizers

from inflight.text.parts import UnsupportedTokenizer

_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SENTENCEPIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def spelling_decoder(backend: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How the backend's decoder reads one token, and whether it drops one space at the start of a text.

    Raises ``UnsupportedTokenizer`` for a decoder that is neither byte-level nor sentencepiece's.
    """
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    if kinds and set(kinds) <= _SENTENCEPIECE_STEPS and all(map(_is_sentencepiece, steps)):
        drops_space = any(
            step["type"] == "Strip" or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps
        )
        return _sentencepiece, drops_space
    raise UnsupportedTokenizer(
        f"the tokenizer's decoder {' + '.join(kinds) or 'is missing and'} is not supported; "
        "byte-level and sentencepiece ones are"
    )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    step: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return step["decoders"] if step["type"] == "Sequence" else [step]


def _is_sentencepiece(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": _SPACE_MARK} and step["content"] == " ")
    if step["type"] == "Strip":
        return bool((step["content"], step["start"], step["stop"]) == (" ", 1, 0))
    return bool(step.get("replacement", _SPACE_MARK) == _SPACE_MARK)


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_of_character()


def _byte_level(spelling: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in spelling])
    except KeyError:  # an added token is spelled as plain text
        return spelling.encode("utf-8")


def _sentencepiece(spelling: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(spelling):
        return bytes([int(byte[1], 16)])
    return spelling.replace(_SPACE_MARK, " ").encode("utf-8")
