"""How exactly dynamic batches leave on time: a real server, real callers, and the window law held against its step log.

python bench/window.py [--num-requests 200] [--max-wait-ms 50] [--max-batch-size 4] [--rate 12]

A batch leaves at max(the engine is free, min(arrival of the one that fills it, arrival of the oldest + window)). The
difference of that time and of the start of its first step is printed, and the gaps between the end of a batch and the
start of the next one where somebody was due.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from inflight.bench.machine import versions
from inflight.bench.over_http import serving
from inflight.engine.recorder import Added, Line, Scheduled, Updated, read_step_log


async def traffic(url: str, num_requests: int, rate_per_s: float, seed: int) -> None:
    """Poisson arrivals of short prompts and 1 to 12 new tokens."""
    draw = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        calls = []
        due_s = time.perf_counter()
        for number in range(num_requests):
            due_s += draw.expovariate(rate_per_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            body = {"prompt": f"Request {number}:", "max_tokens": draw.randint(1, 12), "ignore_eos": True}
            calls.append(asyncio.create_task(http.post("/v1/completions", json=body)))
        for answer in await asyncio.gather(*calls):
            answer.raise_for_status()


def lateness_s(log: list[Line], window_s: float, max_rows: int) -> tuple[list[float], list[float]]:
    """Seconds by which each batch left late, and those between two batches of which the second was due already."""
    waiting: dict[str, float] = {}
    late_s, gaps_s = [], []
    free_s, rows_left = 0.0, 0
    for line in log:
        match line:
            case Added(_, request):
                waiting[request.request_id] = request.arrival_s
            case Scheduled(now_s, output) if rows_left == 0:
                arrivals_s = sorted(waiting.values())
                filled_s = arrivals_s[max_rows - 1] if len(arrivals_s) >= max_rows else float("inf")
                due_s = min(filled_s, arrivals_s[0] + window_s)
                late_s.append(now_s - max(free_s, due_s))
                if due_s < free_s:
                    gaps_s.append(now_s - free_s)
                for row in output.scheduled:
                    del waiting[row.seq_id[0]]
                rows_left = len(output.scheduled)
            case Updated(now_s):
                rows_left -= sum(event.finish_reason is not None for event in line.events)
                free_s = now_s
    return late_s, gaps_s


def shown(name: str, samples_s: list[float]) -> str:
    ordered = sorted(1000 * sample for sample in samples_s)
    if not ordered:
        return f"{name}: none"
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    median = statistics.median(ordered)
    return f"{name}: median {median:.2f} ms, p99 {p99:.2f} ms, max {ordered[-1]:.2f} ms, n={len(ordered)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=200)
    parser.add_argument("--max-wait-ms", type=float, default=50.0)
    parser.add_argument("--max-batch-size", type=int, default=4)
    parser.add_argument("--rate", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        step_log = Path(folder) / "steps.jsonl"
        values = {
            "scheduler": "dynamic",
            "max_batch_size": args.max_batch_size,
            "max_wait_ms": args.max_wait_ms,
            "step_log": step_log,
        }
        with serving(values) as server:
            asyncio.run(traffic(server.url, args.num_requests, args.rate, args.seed))
        _, *log = read_step_log(step_log)
    late_s, gaps_s = lateness_s(log, args.max_wait_ms / 1000, args.max_batch_size)
    print(
        f"{args.num_requests} requests at {args.rate}/s, window {args.max_wait_ms} ms, batches of {args.max_batch_size}"
    )
    print(f"{len(late_s)} batches; inflight {versions()['inflight']}, {versions()['cpu']}")
    print(shown("start after the window law says", late_s))
    print(shown("from the end of a batch to the start of one that was due", gaps_s))


if __name__ == "__main__":
    main()
