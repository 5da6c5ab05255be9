"""Prompts to token ids, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from inflight.core.errors import Reason, Rejected
from inflight.core.request import TokenId
from inflight.engine.client import EngineClient
from inflight.text.tokenizer import Tokenizer

T = TypeVar("T")

_SHORT_CHARS = 2_000  # tokenised in a few milliseconds at most
_LONG_CHARS = 100_000  # ... in some tenths of a second


class PromptReader:
    """Tokenises prompts: short ones at once, long ones one after another on a thread of their own.

    One thread, so that callers with long prompts wait for each other and leave the machine to the engine. A text that
    would be too long even if every token of it were the vocabulary's longest is refused unread if it is very long:
    tokenising megabytes takes many seconds.
    """

    def __init__(self, tokenizer: Tokenizer, client: EngineClient) -> None:
        self.tokenizer = tokenizer
        self._client = client
        self._max_token_bytes = max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
        self._thread = ThreadPoolExecutor(1, "tokenize")

    async def encode(self, prompt: str, add_special_tokens: bool) -> list[TokenId]:
        """The tokens of a text. Raises ``Rejected`` for one that is empty, or far too long."""
        (token_ids,) = await self.encode_all([prompt], add_special_tokens)
        return token_ids

    async def encode_all(self, prompts: Sequence[str | list[TokenId]], add_special_tokens: bool) -> list[list[TokenId]]:
        """The tokens of the prompts of one call, short if all their texts together are. Raises as ``encode`` does."""
        if "" in prompts:
            raise Rejected(Reason.INVALID, "the prompt is empty", "prompt")

        def encode() -> list[list[TokenId]]:
            return [
                self._encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt for prompt in prompts
            ]

        num_chars = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        return encode() if num_chars <= _SHORT_CHARS else await self._on_thread(encode)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, add_special_tokens: bool
    ) -> list[TokenId]:
        """The tokens of a chat in the model's template. Raises ``Rejected``."""

        def encode() -> list[TokenId]:
            return self._encode(self.tokenizer.render_chat(messages, add_generation_prompt), add_special_tokens)

        return encode() if _are_short(messages) else await self._on_thread(encode)

    async def decode(self, token_ids: Sequence[TokenId]) -> str:
        """The text of token ids, special tokens spelled out. Raises ``Rejected`` for ids outside the vocabulary."""
        if len(token_ids) <= _SHORT_CHARS:
            return self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return await self._on_thread(lambda: self.tokenizer.decode(token_ids, skip_special_tokens=False))

    def check_length(self, num_tokens: int, at_least: str = "") -> None:
        """Raise ``Rejected`` for a prompt that leaves no room for a new token: it need not travel to the engine."""
        max_model_len = self._client.info.max_model_len  # of the engine that runs now: a restart may change it
        if num_tokens >= max_model_len:
            raise Rejected(
                Reason.CONTEXT_LENGTH,
                f"the prompt has {at_least}{num_tokens} tokens, and with a new one it is too long: a sequence can have "
                f"{max_model_len} tokens here",
                "prompt",
            )

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, text: str, add_special_tokens: bool) -> list[TokenId]:
        if len(text) > _LONG_CHARS:
            # A text has at least as many bytes as characters, and so at least so many tokens.
            self.check_length(len(text) // self._max_token_bytes, "at least ")
        return self.tokenizer.encode(text, add_special_tokens)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _are_short(messages: Sequence[Mapping[str, Any]]) -> bool:
    texts = [message["content"] for message in messages]
    return len(texts) <= 20 and all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= _SHORT_CHARS
