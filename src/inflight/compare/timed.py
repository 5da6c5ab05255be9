"""What deciding costs: a scheduler, and a stopwatch around it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from inflight.core.errors import StepFailed
from inflight.core.lifecycle import Transition
from inflight.core.output import Idle, LaneId, SchedulerOutput, SchedulerStats, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SeqId
from inflight.core.scheduler import Scheduler


class TimedScheduler:
    """The scheduler that it is given (see ``Scheduler``); ``spent_s`` are the seconds spent in it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.lanes = scheduler.lanes
        self.spent_s = 0.0
        self._scheduler = scheduler

    def add(self, request: Request, now_s: float) -> None:
        """See ``Scheduler``."""
        start_s = time.perf_counter()
        self._scheduler.add(request, now_s)
        self.spent_s += time.perf_counter() - start_s

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """See ``Scheduler``."""
        self._scheduler.abort(request_id, now_s)

    def schedule(self, lane: LaneId, now_s: float) -> SchedulerOutput | Idle:
        """See ``Scheduler``."""
        start_s = time.perf_counter()
        output = self._scheduler.schedule(lane, now_s)
        self.spent_s += time.perf_counter() - start_s
        return output

    def update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        now_s: float,
    ) -> tuple[TokenEvent, ...]:
        """See ``Scheduler``."""
        start_s = time.perf_counter()
        events = self._scheduler.update(output, result, stops, now_s)
        self.spent_s += time.perf_counter() - start_s
        return events

    def flush(self, now_s: float) -> None:
        """See ``Scheduler``."""
        self._scheduler.flush(now_s)

    def transitions(self) -> tuple[Transition, ...]:
        """See ``Scheduler``."""
        return self._scheduler.transitions()

    def stats(self) -> SchedulerStats:
        """See ``Scheduler``."""
        return self._scheduler.stats()

    def check(self) -> None:
        """See ``Scheduler``."""
        self._scheduler.check()
