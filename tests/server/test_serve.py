"""The server as a process: signals, draining, a port in use."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from inflight.commands.serve import run_server
from inflight.engine.loop import Engine
from inflight.engine.process import ProcessConfig
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
async def server_process(
    folder: Path, drain_timeout_s: float = 20.0, max_files: int | None = None
) -> AsyncGenerator[Process, None]:
    def limit_files() -> None:
        if max_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_files // 2, max_files))

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server.fake_server", str(port), str(drain_timeout_s)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))},
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=limit_files,
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
        assert server.process.stderr is not None
        assert b"Traceback" not in await server.process.stderr.read()


@in_loop
async def test_idle_connections_lock_nobody_out(tmp_path: Path) -> None:
    async with server_process(tmp_path, max_files=80) as server:
        port = server.http.base_url.port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert await server.status("/health") == 200
        _, first, lines = await server.first_chunk()
        idle += [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        (tmp_path / "go").touch()
        assert (first + await server.rest(lines))[-1] == "data: [DONE]"  # one at work does not make room
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
        assert server.process.stderr is not None
        assert b"out of system resource" not in await server.process.stderr.read()
        for _, writer in idle:
            writer.close()


@in_loop
async def test_a_connection_without_a_request_is_closed() -> None:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = ServerConfig(request_timeout_s=0.3)
    serving = asyncio.create_task(
        serve(FakeClient(), byte_tokenizer(), config, Reporter(PrometheusMetrics()), listener)
    )
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    for head in (b"", health, health + b"Content-Length: 9\r\n\r\nx", health + b"\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.read()  # to the end
        assert answer.startswith(b"HTTP/1.1 200") == (b"\r\n\r\n" in head)
        writer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    await serving


def start_slowly() -> Engine:
    Path("starting").touch()
    time.sleep(3600)
    raise AssertionError


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@in_loop
async def test_a_signal_while_the_engine_starts_ends_it_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sig: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(
            run_server(start_slowly, ProcessConfig(), byte_tokenizer(), ServerConfig(), listener)
        )
        await until(Path("starting").exists)
        assert list((tmp_path / "tmp").iterdir())
        os.kill(os.getpid(), sig)
        await serving
    assert not list((tmp_path / "tmp").iterdir())
    assert handlers == {number: signal.getsignal(number) for number in handlers}


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


def test_what_is_sent_leaves_at_once() -> None:
    """Nagle's algorithm would keep the first token back until the caller has acknowledged the headers."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_said_to_be_so() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}.*--port") as refused:
            listen("127.0.0.1", port)
        assert "another server" in str(refused.value)
    with pytest.raises(CannotListen, match="host") as refused:
        listen("999.1.1.1", 80)
    assert "another server" not in str(refused.value)


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
        {"request_timeout_s": 0.0},
        {"api_key": ("",)},
    ],
)
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerConfig(**wrong)  # type: ignore[arg-type]
