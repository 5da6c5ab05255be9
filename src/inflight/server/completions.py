"""``POST /v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from inflight.engine.events import ChoiceDelta
from inflight.server.answer import Choice, answer
from inflight.server.body import read_model
from inflight.server.generation import new_call, new_seed
from inflight.server.logprobs import CompletionLogprobs, TokenBytes
from inflight.server.namespace import namespace
from inflight.server.protocol import CompletionRequest
from inflight.server.services import services


async def create_completion(request: Request) -> Response:
    """Complete one prompt or several; the choices of the first prompt come first."""
    body, arrival_s = await read_model(request, CompletionRequest)
    shared = services(request)
    model = shared.model_name(body.model)
    samplings = [body.sampling(new_seed(), body.max_tokens, body.logprobs) for _ in body.prompt]
    prompts = await shared.prompts.encode_all(body.prompt, body.add_special_tokens)
    cache_salt = namespace(request).cache_salt(body.cache_salt or "")
    call = new_call(shared, "cmpl", prompts, samplings, body.priority, arrival_s, cache_salt)
    token_bytes = None if body.logprobs is None else shared.prompts.tokenizer.token_bytes
    shape = CompletionShape(call.call_id, model, token_bytes)
    return await answer(request, call, shape, body.stream, body.usage_in_stream)


class CompletionShape:
    """Objects ``text_completion``, with logprobs if ``token_bytes`` is given."""

    def __init__(self, call_id: str, model: str, token_bytes: TokenBytes | None) -> None:
        self._head = {"id": call_id, "object": "text_completion", "created": int(time.time()), "model": model}
        self._token_bytes = token_bytes
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """See ``Shape``."""
        parts = [
            self._choice(index, choice.text, choice.tokens, choice.finish_reason)
            for index, choice in enumerate(choices)
        ]
        return {**self._head, "choices": parts}

    def chunks(self, index: int, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """See ``Shape``."""
        if not (delta.text or delta.finish_reason or (self._token_bytes and delta.tokens)):
            return []
        return [{**self._head, "choices": [self._choice(index, delta.text, delta.tokens, delta.finish_reason)]}]

    def last(self) -> dict[str, Any]:
        """See ``Shape``."""
        return {**self._head, "choices": []}

    def _choice(self, index: int, text: str, tokens: Sequence[Any], finish_reason: str | None) -> dict[str, Any]:
        logprobs = None
        if self._token_bytes is not None:
            logprobs = self._logprobs.setdefault(index, CompletionLogprobs(self._token_bytes)).add(tokens)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
