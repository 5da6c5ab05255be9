"""What is left of the engine's throughput beside a process that never sleeps, on the same processors.

    python bench/busy_neighbour.py [--num-threads 2] [--seconds 3]

Steps of the built-in model run for some seconds each, alone and beside the neighbour: one row that decodes, 16 rows,
and a prompt of 200 tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.core.request import SamplingParams
from inflight.hub.resolve import resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from inflight.runtime.runner import ModelExecutor

CONTEXT = 200
BLOCKS = -(-(CONTEXT + 1) // 16)


def rows(num_rows: int, num_tokens: int, start: int) -> tuple[ScheduledSequence, ...]:
    return tuple(
        ScheduledSequence((str(i), 0), (5,) * num_tokens, start, tuple(range(i * BLOCKS, (i + 1) * BLOCKS)), 1)
        for i in range(num_rows)
    )


STEPS = {"1 row": rows(1, 1, CONTEXT), "16 rows": rows(16, 1, CONTEXT), "prompt of 200": rows(1, CONTEXT, 0)}


def tokens_per_s(executor: ModelExecutor, scheduled: tuple[ScheduledSequence, ...], seconds: float) -> float:
    step = SchedulerOutput("main", 0, scheduled)
    executor.execute(step)
    started_s, num_steps = time.perf_counter(), 0
    while time.perf_counter() - started_s < seconds:
        executor.execute(step)
        num_steps += 1
    return num_steps * step.num_tokens / (time.perf_counter() - started_s)


@contextmanager
def neighbour() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    config = RuntimeConfig(num_threads=args.num_threads, num_gpu_blocks_override=16 * BLOCKS)
    executor = load_executor(resolve(None).path, config)
    greedy = SamplingParams(temperature=0.0)
    for row in rows(16, CONTEXT, 0):
        new = NewSequence(row.seq_id, row.token_ids, greedy, ())
        executor.execute(SchedulerOutput("main", 0, (row,), new=(new,)))
    print(f"{executor.notes[0]}; {executor.num_threads} threads")
    alone = {name: tokens_per_s(executor, scheduled, args.seconds) for name, scheduled in STEPS.items()}
    with neighbour():
        beside = {name: tokens_per_s(executor, scheduled, args.seconds) for name, scheduled in STEPS.items()}
    for name in STEPS:
        share = beside[name] / alone[name]
        print(f"{name:<14}{alone[name]:>7.0f} tokens/s alone, {beside[name]:>5.0f} beside a neighbour: {share:.0%}")


if __name__ == "__main__":
    main()
