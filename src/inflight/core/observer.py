"""Who watches an engine: every input and every decision of its scheduler, with their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inflight.core.errors import Rejected, StepFailed
from inflight.core.output import SchedulerOutput, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SeqId


class Observer(Protocol):
    """Called by the engine right after the scheduler was; must not change what it is given.

    The step log and the metrics are both observers, so that they cannot disagree about what happened.
    """

    def on_add(self, request: Request, rejected: Rejected | None, now_s: float) -> None:
        """A request was queued, or refused with ``rejected``."""

    def on_abort(self, request_id: RequestId, now_s: float) -> None:
        """A caller gave a request up."""

    def on_flush(self, now_s: float) -> None:
        """The scheduler was told that nobody else comes for now."""

    def on_schedule(self, output: SchedulerOutput, now_s: float) -> None:
        """A step was decided and starts now."""

    def on_update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        events: tuple[TokenEvent, ...],
        now_s: float,
    ) -> None:
        """A step has ended and gave ``events``."""
