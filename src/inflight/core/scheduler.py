"""The contract of a scheduler: a pure state machine, without clock, thread, randomness or I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inflight.core.errors import StepFailed
from inflight.core.lifecycle import Transition
from inflight.core.output import Idle, LaneId, SchedulerOutput, SchedulerStats, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SeqId


class Scheduler(Protocol):
    """Decides, before every forward pass, which sequences run and how many tokens of each.

    Every output of ``schedule`` is answered by exactly one ``update`` before the same lane is scheduled again.
    Time is an argument, in seconds, and never goes backwards.
    """

    lanes: tuple[LaneId, ...]

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request. Raises ``Rejected`` if it can never run, or if the queue is full."""

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """End a request in any status; unknown ids are ignored. A row in flight leaves in ``update``."""

    def schedule(self, lane: LaneId, now_s: float) -> SchedulerOutput | Idle:
        """Decide the lane's next step, with at least one row, or say that nothing can run, and until when."""

    def update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        now_s: float,
    ) -> tuple[TokenEvent, ...]:
        """Take in what a step gave; rows that ended free their blocks before this returns."""

    def flush(self, now_s: float) -> None:
        """Nobody else comes for now: those who wait need not wait for others. Later arrivals may again."""

    def transitions(self) -> tuple[Transition, ...]:
        """The status changes since the last call, oldest first."""

    def stats(self) -> SchedulerStats:
        """Counts and gauges of this instant."""

    def check(self) -> None:
        """Raise ``InvariantViolation`` if the bookkeeping contradicts itself."""
