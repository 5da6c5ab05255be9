"""The race over HTTP: a server in its own processes, and streaming callers in this one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import psutil

from inflight.bench.figures import Answer, Figures, Usage, figures
from inflight.bench.process import cpu_s, forget_peak, num_cpus, peak_bytes
from inflight.config import EngineConfig, flag
from inflight.core.errors import InflightError
from inflight.metrics.definitions import BATCH_TOKENS
from inflight.schedulers.config import StaticConfig
from inflight.workload.item import WorkItem

STOP_S = 30.0  # from being told to stop to being killed


@dataclass(frozen=True, slots=True)
class Server:
    """A running ``inflight serve``: its address, its two processes and what it printed when it was ready."""

    url: str
    api_pid: int
    engine_pid: int
    banner: tuple[str, ...]


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """Settings by field name as the flags of ``inflight serve``, the model last."""
    flags = []
    for name, value in values.items():
        if isinstance(value, bool):
            flags.append(flag(name if value else f"no_{name}"))
        elif isinstance(value, tuple) and all(isinstance(one, str) for one in value):
            flags += [f"{flag(name)}={one}" for one in value]
        elif name != "model":
            text = ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else value
            flags.append(f"{flag(name)}={text}")
    return [*flags, *([values["model"]] if values.get("model") is not None else [])]


def check_static_leaves(config: EngineConfig) -> None:
    """Raise ``ValueError`` for a server whose last batch would wait for ever to be filled."""
    if isinstance(config.scheduler, StaticConfig) and config.scheduler.fill_timeout_ms is None:
        raise ValueError(
            "over HTTP nobody tells a static batch that no more requests come: give --fill-timeout-ms, or run in this "
            "process"
        )


@contextmanager
def serving(values: Mapping[str, Any]) -> Iterator[Server]:
    """Start a server on a free port, with settings by field name, and stop it in the end.

    Raises ``InflightError``, with the server's last words, if it does not become ready.
    """
    command = [sys.executable, "-m", "inflight.cli", "serve", "--host=127.0.0.1", "--port=0", *as_flags(values)]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace") as process,
    ):
        try:
            banner = _read_banner(process)
            if not banner:
                stderr.seek(0)
                raise InflightError(f"the server did not start: {_last_words(stderr.read())}")
            url = next(word for line in banner for word in line.split() if word.startswith("http://"))
            engines = psutil.Process(process.pid).children()
            if len(engines) != 1:
                raise InflightError(f"the server has {len(engines)} processes beside its own, not one engine")
            yield Server(url, process.pid, engines[0].pid, tuple(banner))
        finally:
            process.terminate()
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
            finally:  # after a Ctrl-C too; one that has ended does not mind
                process.kill()


def _read_banner(process: subprocess.Popen[str]) -> list[str]:
    """What the server prints once it is ready; empty if it ends before."""
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line.strip())
        if lines[-1].startswith("try "):
            return lines
    return []


def _last_words(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return lines[-1].removeprefix("inflight: ") if lines else "it ended without a word"


async def max_model_len(server: Server) -> int:
    """The longest sequence that the server takes, in tokens."""
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as http:
        return int((await http.get("/v1/models")).raise_for_status().json()["data"][0]["max_model_len"])


async def run_over_http(server: Server, workload: Sequence[WorkItem], num_callers: int) -> Figures:
    """Run a workload once, with ``num_callers`` callers, each of which waits for its answer before it asks again.

    Raises ``InflightError`` if a request is refused, or does not end as it should.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as http:
        steps_before = await _step_counts(http)
        forget_peak(server.engine_pid)
        pids = (None, server.api_pid, server.engine_pid)
        before_s = [cpu_s(pid) for pid in pids]
        answers: dict[str, Answer] = {}
        raw: dict[str, list[bytes]] = {}
        pending = iter(workload)

        async def call_on() -> None:
            for item in pending:
                answers[item.item_id], raw[item.item_id] = await _call(http, item)

        start_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as callers:
                for _ in range(min(num_callers, len(workload))):
                    callers.create_task(call_on())
        except* InflightError as errors:
            raise errors.exceptions[0] from None
        except* httpx.HTTPError as errors:
            raise InflightError(f"the server was lost: {errors.exceptions[0]!r}") from errors
        end_s = time.perf_counter()
        client_s, api_s, engine_s = (cpu_s(pid) - s for pid, s in zip(pids, before_s, strict=True))
        num_steps, num_step_tokens = (
            after - before for after, before in zip(await _step_counts(http), steps_before, strict=True)
        )
        usage = Usage(
            num_steps=num_steps,
            num_step_tokens=num_step_tokens,
            engine_cpu_s=engine_s,
            engine_peak_bytes=peak_bytes(server.engine_pid),
            api_cpu_s=api_s,
            client_cpu_s=client_s,
            client_cpu_share=client_s / (num_cpus() * (end_s - start_s)),
        )
    for item in workload:
        _read_events(item, answers[item.item_id], raw[item.item_id])
    return figures(workload, [answers[item.item_id] for item in workload], start_s, end_s, usage)


async def _call(http: httpx.AsyncClient, item: WorkItem) -> tuple[Answer, list[bytes]]:
    """Ask for one completion; the pieces of its stream, and when each came. What they hold is read afterwards."""
    body = {
        "prompt": item.prompt_token_ids,
        "max_tokens": item.max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer, pieces = Answer(time.perf_counter()), []
    headers = {"Content-Type": "application/json"}
    async with http.stream("POST", "/v1/completions", content=msgspec.json.encode(body), headers=headers) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise InflightError(f"request {item.item_id} was refused with {response.status_code}: {text}")
        async for piece in response.aiter_raw():
            answer.arrivals_s.append(time.perf_counter())
            pieces.append(piece)
    return answer, pieces


def _read_events(item: WorkItem, answer: Answer, pieces: list[bytes]) -> None:
    """Take the text out of the events of a stream, and keep the times of those that brought some.

    Raises ``InflightError`` unless the stream gave what was asked for.
    """
    times_s, answer.arrivals_s = answer.arrivals_s, []
    num_tokens, rest = 0, b""
    for at_s, piece in zip(times_s, pieces, strict=True):
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data == event or data == b"[DONE]":  # a comment, or the end
                continue
            chunk = msgspec.json.decode(data)
            if "error" in chunk:
                raise InflightError(f"request {item.item_id} failed: {chunk['error']['message']}")
            if chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                answer.arrivals_s.append(at_s)
                answer.texts.append(choice["text"])
    if num_tokens != item.max_tokens:
        raise InflightError(f"request {item.item_id} got {num_tokens} tokens of {item.max_tokens}")


async def _step_counts(http: httpx.AsyncClient) -> tuple[int, int]:
    """Steps that the engine has run, and the tokens in them."""
    counts = {"_count": 0, "_sum": 0}
    for line in (await http.get("/metrics")).raise_for_status().text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(BATCH_TOKENS.name) and (end := name.removeprefix(BATCH_TOKENS.name)) in counts:
            counts[end] = int(float(value))
    return counts["_count"], counts["_sum"]
