"""Server-sent events: a generator of events written to one caller at that caller's pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight.server.errors import answer_to
from inflight.server.hang_up import cancel, hung_up

DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"


def event(content: Any) -> bytes:
    """One event with ``content`` as JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


class EventStream(StreamingResponse):
    """Writes ``events`` as they come; ``keep_alive_s`` of silence are broken by a comment.

    The next event is asked for when the last one has left: a caller who does not read slows down this generator and
    nothing else. The generator is closed when the caller hangs up. What it raises becomes an answer of its own if
    nothing was written yet, and else a last event, without ``[DONE]``.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], keep_alive_s: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._sending = asyncio.Lock()
        self._started = False
        self._last_sent_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        writer = asyncio.create_task(self._write(scope, receive, send))
        leaver = asyncio.create_task(hung_up(receive))
        keeper = asyncio.create_task(self._keep_alive(send))
        try:
            await asyncio.wait((writer, leaver), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(writer, leaver, keeper)
            await self._events.aclose()
        if not writer.cancelled():
            writer.result()

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for content in self._events:
                await self._send(send, content)
        except Exception as error:
            answer = answer_to(error)
            async with self._sending:
                if not self._started:
                    self._started = True
                    await answer.response()(scope, receive, send)
                    return
            await self._send(send, b"data: " + answer.body() + b"\n\n")
        async with self._sending:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, content: bytes) -> None:
        async with self._sending:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": content, "more_body": True})
            self._last_sent_s = time.monotonic()

    async def _keep_alive(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._last_sent_s + self._keep_alive_s - time.monotonic())
            if time.monotonic() >= self._last_sent_s + self._keep_alive_s:
                await self._send(send, _COMMENT)
