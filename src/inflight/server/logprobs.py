"""Logprobs in the two shapes that the OpenAI API has for them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from inflight.core.output import SampledToken
from inflight.core.request import TokenId

TokenBytes = Callable[[TokenId], bytes]

_LOWEST = -9999.0  # JSON has no infinity


def token_text(raw: bytes) -> str:
    r"""A token's bytes as text; where they are no text by themselves, ``bytes:\xe2\x82``, as OpenAI spells it."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokens: Sequence[SampledToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice."""

    def entry(token_id: TokenId, logprob: float | None) -> dict[str, Any]:
        raw = token_bytes(token_id)
        return {"token": token_text(raw), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        {
            **entry(token.token_id, token.logprob),
            "top_logprobs": [entry(token_id, logprob) for token_id, logprob in token.top_logprobs],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The ``logprobs`` of one completion choice, piece by piece: ``text_offset`` counts on from piece to piece."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def add(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        """The next piece. The sampled token is always among its ``top_logprobs``."""
        piece: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token in tokens:
            raw = self._token_bytes(token.token_id)
            text, logprob = token_text(raw), _finite(token.logprob)
            piece["text_offset"].append(self._num_chars)
            piece["token_logprobs"].append(logprob)
            piece["tokens"].append(text)
            top = {token_text(self._token_bytes(other)): _finite(value) for other, value in token.top_logprobs}
            piece["top_logprobs"].append({**top, text: logprob})
            self._num_chars += len(self._decoder.decode(raw))
        return piece


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
