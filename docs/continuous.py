"""Make docs/continuous.svg: three long requests run on a real server, a short one arrives, and the step log is drawn.

python docs/continuous.py
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import httpx

from inflight.explain import svg
from inflight.explain.log import open_log
from inflight.explain.read_timeline import read_timeline

OUT = Path(__file__).with_name("continuous.svg")
LONG = (
    "Explain to a new colleague how a bakery plans its night, from the dough to the van.",
    "Describe the four seasons in a northern harbour town, one after the other.",
    "List what to check before a long cycling tour, and say why each thing matters.",
)
SHORT = "Answer with one word only. What colour is fresh snow? " + "Please be brief. " * 6


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int, started: asyncio.Event) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        num_chunks = 0
        async for line in response.aiter_lines():
            num_chunks += line.startswith("data: {")
            if num_chunks == 12:
                started.set()


async def traffic(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        started = [asyncio.Event() for _ in LONG]
        long = [
            asyncio.create_task(ask(client, prompt, max_tokens, event))
            for prompt, max_tokens, event in zip(LONG, (44, 38, 50), started, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in started))
        await ask(client, SHORT, 8, asyncio.Event())
        await asyncio.gather(*long)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        command = ["inflight", "serve", "--port", "0", "--step-log", str(log), "--max-num-seqs", "4"]
        server = subprocess.Popen(
            [sys.executable, "-m", "inflight.cli", *command[1:]], stdout=subprocess.PIPE, text=True
        )
        try:
            url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
            asyncio.run(traffic(url.rstrip("/")))
        finally:
            server.terminate()
            server.wait()
        timeline = read_timeline(open_log(log))
        names = ("long 1", "long 2", "long 3", "short")  # they came in this order
        named = [replace(track, seq_id=(name, 0)) for name, track in zip(names, timeline.sequences, strict=True)]
        OUT.write_text(svg.draw(replace(timeline, sequences=tuple(named)), rows="requests"))


if __name__ == "__main__":
    main()
