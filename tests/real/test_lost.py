"""`kill -9` of the engine's process, and of the server's."""

from __future__ import annotations

import asyncio

import psutil

from real.serving import events_of, serving

BODY = {"prompt": "Tell me about rain.", "max_tokens": 300, "ignore_eos": True, "stream": True}


async def read_stream(http, index: int, started: asyncio.Event) -> list[str]:
    lines = []
    async with http.stream("POST", "/v1/completions", json=BODY | {"seed": index}) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            started.set()
    return lines


def test_kill_9(model_files, tmp_path, tell):
    async def main(server):
        async with server.http() as http:
            started = [asyncio.Event() for _ in range(6)]
            streams = [asyncio.create_task(read_stream(http, i, event)) for i, event in enumerate(started)]
            await asyncio.gather(*(event.wait() for event in started))
            whole = BODY | {"stream": False}
            waiting = [asyncio.create_task(http.post("/v1/completions", json=whole)) for _ in range(6)]
            while (await server.metrics(http))["inflight_num_requests_live"] < 12:
                await asyncio.sleep(0.05)
            (engine,) = psutil.Process(server.process.pid).children()
            engine.kill()
            ends = [events_of(lines) for lines in await asyncio.gather(*streams)]
            refused = await asyncio.gather(*waiting)
            health = await http.get("/health")
            metrics = await server.metrics(http)
            while (await http.get("/health")).status_code != 200:
                await asyncio.sleep(0.05)
            after = await http.post("/v1/completions", json=BODY | {"stream": False, "max_tokens": 3})
        return ends, refused, health, metrics, after

    with serving(tmp_path) as server:
        ends, refused, health, metrics, after = asyncio.run(asyncio.wait_for(main(server), 300))
        for events, done in ends:
            assert not done
            assert "signal 9" in events[-1]["error"]["message"]
            assert all("choices" in event for event in events[:-1])
        assert all(answer.status_code == 503 and "signal 9" in answer.text for answer in refused)
        assert health.status_code == 503
        assert "signal 9" in health.text
        assert metrics['inflight_requests_total{outcome="failed",reason="engine_lost"}'] == 12
        assert after.status_code == 200
        assert after.json()["usage"]["completion_tokens"] == 3
        (engine,) = psutil.Process(server.process.pid).children()
        server.process.kill()
        server.process.wait()
        gone, alive = psutil.wait_procs([engine], timeout=60)
        assert (gone, alive) == ([engine], [])
    tell(f"kill -9 of the engine: {len(ends)} streams and {len(refused)} others were told: {health.text}")
