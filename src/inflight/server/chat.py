"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from inflight.core.output import SampledToken
from inflight.engine.events import ChoiceDelta
from inflight.server.answer import Choice, answer
from inflight.server.body import read_model
from inflight.server.generation import new_call, new_seed
from inflight.server.logprobs import TokenBytes, chat_logprobs
from inflight.server.namespace import namespace
from inflight.server.protocol import ChatCompletionRequest
from inflight.server.services import services


async def create_chat_completion(request: Request) -> Response:
    """Answer the last message of a chat."""
    body, arrival_s = await read_model(request, ChatCompletionRequest)
    shared = services(request)
    model = shared.model_name(body.model)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = body.sampling(new_seed(), max_tokens, (body.top_logprobs or 0) if body.logprobs else None)
    prompt = await shared.prompts.encode_chat(
        [message.as_dict() for message in body.messages], body.add_generation_prompt, body.add_special_tokens
    )
    cache_salt = namespace(request).cache_salt(body.cache_salt or "")
    call = new_call(shared, "chatcmpl", [prompt], [sampling], body.priority, arrival_s, cache_salt)
    shape = ChatShape(call.call_id, model, shared.prompts.tokenizer.token_bytes if body.logprobs else None)
    return await answer(request, call, shape, body.stream, body.usage_in_stream)


class ChatShape:
    """Objects ``chat.completion`` and ``chat.completion.chunk``, with logprobs if ``token_bytes`` is given."""

    def __init__(self, call_id: str, model: str, token_bytes: TokenBytes | None) -> None:
        self._head = {"id": call_id, "object": "chat.completion", "created": int(time.time()), "model": model}
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        self._token_bytes = token_bytes
        self._opened: set[int] = set()  # choices that have their role

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """See ``Shape``."""
        parts = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return {**self._head, "choices": parts}

    def chunks(self, index: int, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """See ``Shape``. The first chunk of a choice holds its role, the last one its finish reason and no text."""
        parts: list[dict[str, Any]] = []
        if index not in self._opened:
            self._opened.add(index)
            parts.append(self._part(index, {"role": "assistant", "content": ""}))
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        if delta.text or logprobs:
            parts.append(self._part(index, {"content": delta.text}, logprobs))
        if delta.finish_reason is not None:
            parts.append(self._part(index, {}, finish_reason=delta.finish_reason))
        return [{**self._chunk_head, "choices": [part]} for part in parts]

    def last(self) -> dict[str, Any]:
        """See ``Shape``."""
        return {**self._chunk_head, "choices": []}

    def _part(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        return None if self._token_bytes is None else chat_logprobs(tokens, self._token_bytes)
