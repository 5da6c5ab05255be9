"""The server as a process: signals, draining, a port in use."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter
from inflight.server.config import ServerConfig
from inflight.server.serve import CannotListen, listen, serve
from server.byte_tokenizer import byte_tokenizer
from server.fake_client import FakeClient
from server.live import in_loop, until

TESTS = Path(__file__).parents[1]


@dataclass
class Process:
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient
    folder: Path

    async def status(self, path: str) -> int:
        return (await self.http.get(path)).status_code

    async def first_chunk(self) -> tuple[httpx.Response, list[str], object]:
        """Start a stream and read its first events."""
        request = self.http.build_request("POST", "/v1/completions", json={"prompt": "x", "stream": True})
        response = await self.http.send(request, stream=True)
        lines = response.aiter_lines()
        return response, [await anext(lines)], lines

    async def rest(self, lines: object) -> list[str]:
        return [line async for line in lines if line.startswith("data: ")]  # type: ignore[attr-defined]


@asynccontextmanager
async def server_process(folder: Path, drain_timeout_s: float = 20.0) -> AsyncGenerator[Process, None]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server.fake_server", str(port), str(drain_timeout_s)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            while True:
                assert process.returncode is None, await process.stderr.read()  # type: ignore[union-attr]
                try:
                    await http.get("/health")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)
            yield Process(process, http, folder)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@in_loop
async def test_running_requests_finish_and_new_ones_are_refused(tmp_path: Path, sig: signal.Signals) -> None:
    async with server_process(tmp_path) as server:
        assert await server.status("/ready") == 200
        _, first, lines = await server.first_chunk()
        server.process.send_signal(sig)
        while await server.status("/ready") == 200:
            await asyncio.sleep(0.01)
        assert await server.status("/health") == 200
        refused = await server.http.post("/v1/completions", json={"prompt": "y"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_unavailable"
        assert "retry-after" in refused.headers
        (tmp_path / "go").touch()
        events = first + await server.rest(lines)
        assert events[-1] == "data: [DONE]"
        assert len(events) > 5
        assert await server.process.wait() == 0


@in_loop
async def test_what_does_not_finish_in_time_is_ended_with_an_error(tmp_path: Path) -> None:
    async with server_process(tmp_path, drain_timeout_s=0.2) as server:
        _, _, lines = await server.first_chunk()
        server.process.send_signal(signal.SIGTERM)
        *_, last = await server.rest(lines)
        assert "error" in json.loads(last.removeprefix("data: "))
        assert await server.process.wait() == 0


@in_loop
async def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    async with server_process(tmp_path, drain_timeout_s=1000.0) as server:
        await server.first_chunk()
        server.process.send_signal(signal.SIGINT)
        while await server.status("/ready") == 200:
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert await server.process.wait() == 0  # the test's own timeout is far below the drain timeout


class FailingReporter(Reporter):
    """One whose line fails every time."""

    def __init__(self) -> None:
        super().__init__(PrometheusMetrics())
        self.num_calls = 0

    def log_period(self, now_s: float) -> None:
        self.num_calls += 1
        raise ZeroDivisionError("no line")


@in_loop
async def test_a_period_that_cannot_be_logged_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    client, reporter = FakeClient(), FailingReporter()
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(
        serve(client, byte_tokenizer(), ServerConfig(log_interval_s=0.001), reporter, listener)
    )
    await until(lambda: reporter.num_calls >= 3)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert "a period could not be logged" in caplog.text
    assert "no line" in caplog.text


def test_a_port_in_use_is_said_to_be_so() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(CannotListen, match="host"):
        listen("no.such.host.invalid", 80)


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 65536},
        {"max_body_bytes": 0},
        {"drain_timeout": -1.0},
        {"drain_timeout": float("nan")},
        {"keep_alive_s": 0.0},
        {"log_interval_s": -5.0},
        {"api_key": ("",)},
    ],
)
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerConfig(**wrong)  # type: ignore[arg-type]
