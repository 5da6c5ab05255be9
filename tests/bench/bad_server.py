"""A server on a real socket that answers as it is told, byte for byte, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from inflight.bench.endpoint import COMPLETIONS, Endpoint

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Behaviour = Callable[[dict, asyncio.StreamWriter], Awaitable[None]]


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A coroutine as a test, in an event loop of its own and with an end."""

    @functools.wraps(test)
    def run(*args, **kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


def event(**content) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def token(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish_reason}])


def whole(num_tokens: int, num_prompt_tokens: int = 3) -> bytes:
    """A good answer."""
    tokens = [token("x", "length" if index == num_tokens - 1 else None) for index in range(num_tokens)]
    usage = event(choices=[], usage={"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens})
    return b"".join((*tokens, usage, b"data: [DONE]\n\n"))


def sends(*pieces: bytes) -> Behaviour:
    async def behave(body: dict, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return behave


async def answers(body: dict, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + whole(body["max_tokens"]))


async def hangs(body: dict, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + token("x"))
    await writer.drain()
    await asyncio.sleep(3600)


@dataclass
class BadServer:
    url: str
    bodies: list[dict] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    def endpoint(self, **others) -> Endpoint:
        settings = {"path": COMPLETIONS, "model": "m", "decode": str, "timeout_s": 20.0} | others
        return Endpoint(base_url=self.url, **settings)


@asynccontextmanager
async def bad_server(behaviour: Behaviour):
    server = BadServer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line)
            content = await reader.readexactly(int(fields.get("content-length", 0)))
            body = json.loads(content or b"{}")
            server.times_s.append(asyncio.get_running_loop().time())
            server.bodies.append(body)
            server.num_open += 1
            server.most_open = max(server.most_open, server.num_open)
            await behaviour(body, writer)
            server.num_open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
