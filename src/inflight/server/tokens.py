"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from inflight.server.body import read_model
from inflight.server.protocol import DetokenizeRequest, TokenizeRequest
from inflight.server.services import services


async def tokenize(request: Request) -> Response:
    """The tokens of a prompt, or of a chat in the model's template."""
    body, _ = await read_model(request, TokenizeRequest)
    shared = services(request)
    shared.model_name(body.model)
    if body.messages:
        messages = [message.as_dict() for message in body.messages]
        tokens = await shared.prompts.encode_chat(
            messages, body.add_generation_prompt, body.add_special_tokens or False
        )
    else:
        add_special_tokens = True if body.add_special_tokens is None else body.add_special_tokens
        tokens = await shared.prompts.encode(body.prompt or "", add_special_tokens)
    return _json({"count": len(tokens), "max_model_len": shared.client.info.max_model_len, "tokens": tokens})


async def detokenize(request: Request) -> Response:
    """The text of tokens, special ones spelled out."""
    body, _ = await read_model(request, DetokenizeRequest)
    shared = services(request)
    shared.model_name(body.model)
    return _json({"prompt": await shared.prompts.decode(body.tokens)})


def _json(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
