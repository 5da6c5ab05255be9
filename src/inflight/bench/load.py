"""A load on an endpoint: callers that send what arrives, when it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inflight.bench.endpoint import Endpoint
from inflight.bench.outcome import Outcome
from inflight.workload.item import WorkItem


async def run_load(
    endpoint: Endpoint,
    items: Sequence[WorkItem],
    max_concurrency: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Send each item when it arrives, counted from now, whatever became of the others; in order of their ends.

    There is a caller for every item (an open loop), or there are ``max_concurrency`` of them, each of which waits for
    its answer before it takes the next item: an open loop with a cap, or, with all arrivals at 0, a closed loop. If
    this task is cancelled, as by Ctrl-C, what has no answer is given up: there are fewer outcomes than items.
    """
    pending = iter(sorted(items, key=lambda item: item.arrival_s))
    done: list[Outcome] = []
    async with endpoint.connect() as http:
        start_s = time.monotonic()

        async def caller() -> None:
            free_s = start_s
            for item in pending:
                scheduled_s = start_s + item.arrival_s
                due_s = max(scheduled_s, free_s)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                outcome = await endpoint.call(http, item, scheduled_s, due_s)
                free_s = outcome.end_s
                done.append(outcome)
                if progress is not None:
                    progress(outcome)

        callers = [asyncio.create_task(caller()) for _ in range(min(max_concurrency or len(items), len(items)))]
        try:
            await asyncio.gather(*callers)
        except asyncio.CancelledError:
            if (this := asyncio.current_task()) is not None:
                this.uncancel()
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    return done
