"""A load on an ``EngineCore`` in this process: real steps, real time, and sleep until the next request arrives."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence

from inflight.bench.call import Call
from inflight.bench.outcome import Outcome
from inflight.core.errors import InflightError, Rejected, StepFailed
from inflight.core.output import MAIN_LANE, Idle, SchedulerOutput, StepResult
from inflight.engine.events import ChoiceDelta
from inflight.engine.loop import Engine
from inflight.workload.item import WorkItem

OnStep = Callable[[SchedulerOutput, StepResult | StepFailed, float], None]  # a step, its result, when it ended


def run_in_process(
    engine: Engine,
    items: Sequence[WorkItem],
    max_concurrency: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
    on_step: OnStep | None = None,
) -> list[Outcome]:
    """Send each item when it arrives, counted from now, and run steps until all have ended; in order of their ends.

    Arrivals do not wait for answers (an open loop), unless ``max_concurrency`` callers are all waiting for one: then
    the next item is due when a caller is free. With all arrivals at 0 that is a closed loop. An item that falls due
    during a step joins the next one and counts as sent when it was due, as a server's callers would have sent it.

    A scheduler that waits for more requests than can come, because no item is left or no caller is free, is told so.

    Every item is greedy and gets exactly ``max_tokens`` tokens. One that is refused or fails has an error in its
    outcome, and the run goes on. ``progress`` is told each outcome, ``on_step`` each step. After Ctrl-C the rest is
    given up: there are fewer outcomes than items. Raises ``InflightError`` if the scheduler has requests and will
    never run them.
    """
    return _Run(engine, items, max_concurrency, progress, on_step).run()


class _Run:
    def __init__(
        self,
        engine: Engine,
        items: Sequence[WorkItem],
        max_concurrency: int | None,
        progress: Callable[[Outcome], None] | None,
        on_step: OnStep | None,
    ) -> None:
        self._engine = engine
        self._progress = progress
        self._on_step = on_step
        self._start_s = time.monotonic()
        self._pending = deque(sorted(items, key=lambda item: item.arrival_s))
        self._free_since = [self._start_s] * min(max_concurrency or len(items), len(items))  # callers; a heap
        self._calls: dict[str, Call] = {}
        self._done: list[Outcome] = []

    def run(self) -> list[Outcome]:
        core = self._engine.core
        flushed = False  # since the last step
        try:
            while self._pending or self._calls:
                self._submit()
                output = core.begin(MAIN_LANE) if self._calls else Idle()
                if isinstance(output, SchedulerOutput):
                    self._step(output)
                    flushed = False
                elif (wake_s := self._wake_s(output)) is not None:
                    time.sleep(max(0.0, wake_s - time.monotonic()))
                elif flushed:
                    raise InflightError("the scheduler has requests and runs none of them")
                elif self._calls:
                    core.flush()
                    flushed = True
        except KeyboardInterrupt:
            for request_id in self._calls:
                core.abort(request_id)
        return self._done

    def _step(self, output: SchedulerOutput) -> None:
        core = self._engine.core
        result = core.execute(output)
        deltas = core.finish(output, result)
        now_s = time.monotonic()
        self._engine.collector.drain()  # nobody asks for the engine's own metrics, and they would pile up
        if self._on_step is not None:
            self._on_step(output, result, now_s)
        self._take(deltas, now_s)

    def _next_due_s(self) -> float | None:
        """When the next item is due; None if there is none, or no caller for it."""
        if not self._pending or not self._free_since:
            return None
        return max(self._start_s + self._pending[0].arrival_s, self._free_since[0])

    def _submit(self) -> None:
        """Give the engine all that is due."""
        now_s = time.monotonic()
        while (due_s := self._next_due_s()) is not None and due_s <= now_s:
            item = self._pending.popleft()
            heapq.heappop(self._free_since)
            call = Call(item.item_id, len(item.prompt_token_ids), self._start_s + item.arrival_s, due_s)
            try:
                request = item.request(due_s)
                request.check_token_ids(self._engine.info.vocab_size)
                self._engine.core.add(request)
            except Rejected as no:
                self._end(call.refused(now_s, no.message))
            else:
                self._calls[item.item_id] = call

    def _wake_s(self, idle: Idle) -> float | None:
        """When the scheduler or an item wants to go on; None: nobody else comes."""
        return min((at_s for at_s in (idle.wake_at_s, self._next_due_s()) if at_s is not None), default=None)

    def _take(self, deltas: Sequence[ChoiceDelta], now_s: float) -> None:
        for delta in deltas:
            request_id = delta.seq_id[0]
            if (outcome := self._calls[request_id].take(delta, now_s, delta.text)) is not None:
                del self._calls[request_id]
                self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        heapq.heappush(self._free_since, outcome.end_s)
        self._done.append(outcome)
        if self._progress is not None:
            self._progress(outcome)
