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
from inflight.server.usage import Usage


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


async def answer(request: Request, call: Call, shape: Shape, stream: bool, options: StreamOptions) -> Response:
    """Run a call and answer it. ``options`` say which chunks of a stream carry the usage."""
    shared = services(request)
    deltas = run(shared.client, call, shared.metrics)
    if stream:
        return EventStream(_events(deltas, call, shape, options), shared.config.keep_alive_s)
    content = await unless_hung_up(request.receive, _whole(deltas, call, shape))
    return Response(content, media_type="application/json")


async def _whole(deltas: AsyncGenerator[IndexedDelta, None], call: Call, shape: Shape) -> bytes:
    choices, usage = [Choice() for _ in range(call.num_choices)], Usage(call)
    async with aclosing(deltas):
        async for index, delta in deltas:
            usage.add(index, delta)
            choice = choices[index]
            choice.texts.append(delta.text)
            choice.tokens += delta.tokens
            choice.finish_reason = delta.finish_reason
    return msgspec.json.encode({**shape.whole(choices), "usage": usage.as_json()})


async def _events(
    deltas: AsyncGenerator[IndexedDelta, None], call: Call, shape: Shape, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    usage = Usage(call)
    async with aclosing(deltas):
        async for index, delta in deltas:
            usage.add(index, delta)
            for chunk in shape.chunks(index, delta):
                if options.include_usage:
                    chunk["usage"] = usage.as_json() if options.continuous_usage_stats else None
                yield event(chunk)
    if options.include_usage:
        yield event({**shape.last(), "usage": usage.as_json()})
    yield DONE
