"""`inflight serve` as its users start it: a process with the real model, its log of steps, and its clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai

from inflight.engine.recorder import Aborted, Added, Scheduled, Updated, read_step_log

START_S = 120.0  # patience, not a measurement
FLAGS = ("--port", "0", "--num-threads", "1")
CONTINUOUS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "48")


class Server:
    """A running `inflight serve`."""

    def __init__(self, process: subprocess.Popen, url: str, step_log: Path) -> None:
        self.process, self.url, self.step_log = process, url, step_log

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=300)

    async def metrics(self, http: httpx.AsyncClient) -> dict[str, float]:
        lines = (await http.get("/metrics")).text.splitlines()
        return {name: float(value) for line in lines if line[:1] != "#" for name, _, value in [line.rpartition(" ")]}

    async def idle(self, http: httpx.AsyncClient) -> dict[str, float]:
        """The metrics once nothing runs or waits."""
        while (metrics := await self.metrics(http))["inflight_num_requests_live"]:
            await asyncio.sleep(0.05)
        return metrics


@contextmanager
def serving(folder: Path, *flags: str, limits: tuple[str, ...] = CONTINUOUS) -> Iterator[Server]:
    step_log = folder / "steps.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "inflight.cli", "serve", *FLAGS, *limits, "--step-log", str(step_log), *flags],
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr.txt").open("wb"),
        text=True,
    )
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    words = (word for line in process.stdout for word in line.split())
    url = next((word for word in words if word.startswith("http://")), None)
    watchdog.cancel()
    assert url is not None, (folder / "stderr.txt").read_text()
    try:
        yield Server(process, url, step_log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Phases:
    """Where each request stands, by its prompt, as the step log tells it."""

    def __init__(self, step_log: Path) -> None:
        self._step_log = step_log

    def read(self) -> tuple[dict[tuple[int, ...], str], list[str]]:
        """(the phase of each prompt; the phases in which requests were given up)."""
        prompts, phases, given_up = {}, {}, []
        for line in read_step_log(self._step_log):
            match line:
                case Added(_, request):
                    prompts[request.request_id] = request.prompt_token_ids
                    phases[request.request_id] = "queued"
                case Scheduled(_, output):
                    for row in output.scheduled:
                        phases[row.seq_id[0]] = "decode" if row.num_logits else "prefill"
                case Updated():
                    for event in line.events:
                        if event.finish_reason is not None:
                            phases[event.seq_id[0]] = "ended"
                case Aborted(_, request_id) if phases.get(request_id) not in (None, "ended"):
                    given_up.append(phases[request_id])
                    phases[request_id] = "ended"
        return {prompts[request_id]: phase for request_id, phase in phases.items()}, given_up

    async def reached(self, prompt_token_ids: list[int], *wanted: str) -> None:
        while self.read()[0].get(tuple(prompt_token_ids)) not in wanted:
            await asyncio.sleep(0.05)


def events_of(lines: list[str]) -> tuple[list[dict], bool]:
    """The data of an SSE response, and whether it ended with [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    done = data[-1:] == ["[DONE]"]
    return [json.loads(one) for one in data[: len(data) - done]], done
