"""Callers who hang up, and callers who do not read."""

import asyncio
import json
import socket

import pytest

from server.live import Live, in_loop, live, until

PATH = "/v1/completions"


async def send(server: Live, **body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await server.connect()
    content = json.dumps({"prompt": "x", "max_tokens": 20, **body}).encode()
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (PATH.encode(), len(content))
    )
    writer.write(content)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "decoding"])
@in_loop
async def test_the_engine_is_told_at_once(stream: bool, phase: str) -> None:
    async with live() as server:
        client = server.client
        (client.admits if phase == "waiting" else client.decodes).clear()
        _, writer = await send(server, stream=stream, n=2)
        await until(lambda: len(client.waiting if phase == "waiting" else client.decoding) == 1)
        writer.close()
        await until(lambda: client.num_closed_early == 1)
        assert not client.waiting
        assert not client.decoding
        client.admits.set()
        client.decodes.set()
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 200


@in_loop
async def test_all_prompts_of_a_call_are_given_up() -> None:
    async with live() as server:
        server.client.admits.clear()
        _, writer = await send(server, prompt=["x", "y", "z"], stream=True)
        await until(lambda: len(server.client.waiting) == 3)
        writer.close()
        await until(lambda: server.client.num_closed_early == 3)
        assert not server.client.waiting


@in_loop
async def test_half_a_request_starts_nothing() -> None:
    async with live() as server:
        _, writer = await server.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 200
        assert len(server.client.requests) == 1


@in_loop
async def test_a_caller_who_does_not_read_holds_up_only_itself() -> None:
    """Its generator is not pulled any more, others go on, and hanging up ends it."""
    num_choices = 128
    async with live(lambda request, choice: [ord("x")]) as server:
        client = server.client
        _, writer = await send(server, n=num_choices, max_tokens=500, ignore_eos=True, stream=True)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()
        await until(lambda: client.num_yielded > 0)
        last = -1
        while client.num_yielded != last:  # until the buffers on the way are full
            last = client.num_yielded
            await asyncio.sleep(0.25)
        assert last < num_choices * 500
        assert (await server.post(PATH, {"prompt": "x", "max_tokens": 5})).status_code == 200
        writer.transport.abort()
        await until(lambda: client.num_closed_early == 1)


@in_loop
async def test_a_queued_stream_is_kept_alive_by_comments() -> None:
    async with live(keep_alive_s=0.02) as server:
        server.client.admits.clear()
        async with server.http.stream("POST", PATH, json={"prompt": "x", "stream": True}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            lines = response.aiter_lines()
            comments = 0
            async for line in lines:
                comments += line == ": keep-alive"
                if comments == 3:
                    server.client.admits.set()
                    break
            rest = [line async for line in lines if line.startswith("data: ")]
            assert rest[-1] == "data: [DONE]"


@in_loop
async def test_the_openai_client_takes_comments_in_its_stride() -> None:
    async with live(keep_alive_s=0.02) as server:
        server.client.admits.clear()
        stream = await server.openai.completions.create(model="fake-model", prompt="x", stream=True)
        await asyncio.sleep(0.1)
        server.client.admits.set()
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "stop"
