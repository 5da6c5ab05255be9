"""The real app over a real uvicorn on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import uvicorn

from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.slo import Slo
from inflight.server.app import create_app
from inflight.server.config import ServerConfig
from inflight.server.serve import listen
from server.byte_tokenizer import byte_tokenizer
from server.fake_client import FakeClient, Reply, hashed_reply


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A coroutine as a test, in an event loop of its own and with an end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the test's own timeout bounds it."""
    while not condition():
        await asyncio.sleep(0.002)


@dataclass
class Live:
    client: FakeClient
    metrics: PrometheusMetrics
    port: int
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)

    async def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a stream, as text."""
        async with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, await response.aread()
            return [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]

    async def chunks(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The objects of a stream that ends as it should."""
        *chunks, done = await self.events(path, body)
        assert done == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def live(reply: Reply = hashed_reply, **config: Any) -> AsyncGenerator[Live, None]:
    server_config = ServerConfig(**config)
    client, metrics = FakeClient(reply), PrometheusMetrics(slo=Slo.parse(server_config.slo))
    app = create_app(client, byte_tokenizer(), server_config, metrics)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(app, http="h11", ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{port}"
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=20) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as sdk,
        ):
            yield Live(client, metrics, port, http, sdk)
    finally:
        await client.close()
        server.should_exit = True
        await serving
