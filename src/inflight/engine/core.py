"""The loop around a scheduler: add, schedule, execute, detokenise, update.

The same object serves, simulates and is tested: executors, clock and text are given to it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from inflight.core.errors import InvariantViolation, Rejected, StepFailed
from inflight.core.lifecycle import Status
from inflight.core.observer import Observer
from inflight.core.output import Idle, LaneId, SchedulerOutput, SchedulerStats, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SamplingParams, SeqId, TokenId
from inflight.core.scheduler import Scheduler
from inflight.engine.clock import Clock
from inflight.engine.events import ChoiceDelta
from inflight.engine.executor import Executor

logger = logging.getLogger(__name__)


class Text(Protocol):
    """One sequence's tokens becoming text; see ``inflight.text.stream``."""

    def push(self, token_ids: Sequence[TokenId]) -> Stop | None:
        """Take sampled tokens; tell if one of them completed a stop string."""

    def take(self, final: bool) -> str:
        """The text that may be released now; all of it if ``final``."""


class EngineCore:
    """One scheduler and its executors, one per lane."""

    def __init__(
        self,
        scheduler: Scheduler,
        executors: Mapping[LaneId, Executor],
        new_text: Callable[[SamplingParams], Text],
        clock: Clock,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._scheduler = scheduler
        self._executors = executors
        self._new_text = new_text
        self._clock = clock
        self._observers = observers
        self._texts: dict[RequestId, dict[int, Text]] = {}  # of the choices that have not ended
        self._wake_at_s: dict[LaneId, float] = {}  # of lanes that are idle unless something comes in

    def add(self, request: Request) -> None:
        """Queue a request. Raises ``Rejected`` if it can never run, or if the queue is full."""
        now_s = self._clock.now_s()
        self._wake_at_s.clear()
        rejected = None
        try:
            self._scheduler.add(request, now_s)
        except Rejected as error:
            rejected = error
            raise
        finally:
            for observer in self._observers:
                observer.on_add(request, rejected, now_s)
        self._texts[request.request_id] = {
            choice: self._new_text(request.sampling) for choice in range(request.sampling.n)
        }

    def abort(self, request_id: RequestId) -> None:
        """End a request in any status; nothing more is emitted for it. Unknown ids are ignored."""
        now_s = self._clock.now_s()
        self._wake_at_s.clear()
        self._scheduler.abort(request_id, now_s)
        self._texts.pop(request_id, None)
        for observer in self._observers:
            observer.on_abort(request_id, now_s)

    def flush(self) -> None:
        """Nobody else comes for now: those who wait for others to share a batch need not wait any more."""
        now_s = self._clock.now_s()
        self._wake_at_s.clear()
        self._scheduler.flush(now_s)
        for observer in self._observers:
            observer.on_flush(now_s)

    def begin(self, lane: LaneId) -> SchedulerOutput | Idle:
        """Decide the lane's next step; ``finish`` must follow before the lane begins again."""
        now_s = self._clock.now_s()
        output = self._scheduler.schedule(lane, now_s)
        if isinstance(output, SchedulerOutput):
            for observer in self._observers:
                observer.on_schedule(output, now_s)
        else:
            self._wake_at_s[lane] = math.inf if output.wake_at_s is None else output.wake_at_s
        return output

    def execute(self, output: SchedulerOutput) -> StepResult | StepFailed:
        """Run a step on its lane's executor; may be called on a thread of its own."""
        try:
            return self._executors[output.lane].execute(output)
        except InvariantViolation:
            raise
        except Exception as error:  # whatever it was, it is this step's: its rows are tried again, one by one
            logger.exception("step %d failed", output.step)
            return error if isinstance(error, StepFailed) else StepFailed(f"{type(error).__name__}: {error}")

    def finish(self, output: SchedulerOutput, result: StepResult | StepFailed) -> list[ChoiceDelta]:
        """Detokenise, look for stop strings, update the scheduler, and say what callers get."""
        stops: dict[SeqId, Stop] = {}
        for row in result.sampled if isinstance(result, StepResult) else ():
            text = self._text(row.seq_id)
            if text is not None and (stop := text.push([token.token_id for token in row.tokens])):
                stops[row.seq_id] = stop
        now_s = self._clock.now_s()
        self._wake_at_s.clear()
        events = self._scheduler.update(output, result, stops, now_s)
        for observer in self._observers:
            observer.on_update(output, result, stops, events, now_s)
        self._log_transitions()
        return [self._delta(event, text) for event in events if (text := self._text(event.seq_id))]

    def step(self) -> list[ChoiceDelta]:
        """One step on each lane that has work; empty if nothing could run: see ``idle_s``."""
        deltas: list[ChoiceDelta] = []
        for lane in self._scheduler.lanes:
            output = self.begin(lane)
            if isinstance(output, SchedulerOutput):
                deltas += self.finish(output, self.execute(output))
        return deltas

    @property
    def has_work(self) -> bool:
        """True while a sequence runs or waits."""
        return bool(self._texts)

    def idle_s(self) -> float:
        """How long nothing can run, unless something comes in: 0 if a step may be due, infinite if nothing is."""
        if not self.has_work:
            return math.inf
        if self._wake_at_s.keys() < set(self._scheduler.lanes):
            return 0.0
        return max(0.0, min(self._wake_at_s.values()) - self._clock.now_s())

    def stats(self) -> SchedulerStats:
        """The scheduler's counts and gauges."""
        return self._scheduler.stats()

    def close(self) -> None:
        """Close the executors; idempotent."""
        for executor in self._executors.values():
            executor.close()

    def _text(self, seq_id: SeqId) -> Text | None:
        request_id, choice = seq_id
        return self._texts.get(request_id, {}).get(choice)

    def _delta(self, event: TokenEvent, text: Text) -> ChoiceDelta:
        ended = event.finish_reason is not None
        if ended:
            request_id, choice = event.seq_id
            del self._texts[request_id][choice]
            if not self._texts[request_id]:
                del self._texts[request_id]
        return ChoiceDelta(
            event.seq_id,
            text.take(final=ended),
            event.tokens,
            event.finish_reason,
            event.stop_reason,
            event.error,
            event.num_cached_tokens,
        )

    def _log_transitions(self) -> None:
        for move in self._scheduler.transitions():
            level = logging.INFO if move.after is Status.PREEMPTED else logging.DEBUG
            logger.log(level, "step %d: %s %s -> %s (%s)", move.step, move.seq_id, move.before, move.after, move.cause)
