"""From the deltas of a call to one JSON answer, or to a stream of chunks; the shapes are the endpoints' own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response

from inflight.core.output import FinishReason, SampledToken
from inflight.engine.events import ChoiceDelta
from inflight.server.generation import Call, IndexedDelta, run
from inflight.server.hang_up import unless_hung_up
from inflight.server.protocol import StreamOptions
from inflight.server.services import services
from inflight.server.sse import DONE, EventStream, event


@dataclass(slots=True)
class Choice:
    """All that one choice has given."""

    texts: list[str] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


class Shape(Protocol):
    """How an endpoint words its answers."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer to a caller who waits for all of it, but for its usage."""

    def chunks(self, index: int, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """What a stream says about a delta of the choice ``index``; may be nothing."""

    def last(self) -> dict[str, Any]:
        """A chunk without choices, to carry the usage."""


async def answer(request: Request, call: Call, shape: Shape, stream: bool, usage: StreamOptions) -> Response:
    """Run a call and answer it. ``usage`` is for streams."""
    shared = services(request)
    deltas = run(shared.client, call, shared.metrics)
    if stream:
        return EventStream(_events(deltas, call, shape, usage), shared.config.keep_alive_s)
    content = await unless_hung_up(request.receive, _whole(deltas, call, shape))
    return Response(content, media_type="application/json")


async def _whole(deltas: AsyncGenerator[IndexedDelta, None], call: Call, shape: Shape) -> bytes:
    choices = [Choice() for _ in range(call.num_choices)]
    async with aclosing(deltas):
        async for index, delta in deltas:
            choice = choices[index]
            choice.texts.append(delta.text)
            choice.tokens += delta.tokens
            choice.finish_reason = delta.finish_reason
    usage = _usage(call, sum(len(choice.tokens) for choice in choices))
    return msgspec.json.encode({**shape.whole(choices), "usage": usage})


async def _events(
    deltas: AsyncGenerator[IndexedDelta, None], call: Call, shape: Shape, usage: StreamOptions
) -> AsyncGenerator[bytes, None]:
    num_output_tokens = 0
    async with aclosing(deltas):
        async for index, delta in deltas:
            num_output_tokens += len(delta.tokens)
            for chunk in shape.chunks(index, delta):
                if usage.include_usage:
                    chunk["usage"] = _usage(call, num_output_tokens) if usage.continuous_usage_stats else None
                yield event(chunk)
    if usage.include_usage:
        yield event({**shape.last(), "usage": _usage(call, num_output_tokens)})
    yield DONE


def _usage(call: Call, num_output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": call.num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": call.num_prompt_tokens + num_output_tokens,
    }
