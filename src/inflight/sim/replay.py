"""Run a scheduler again on the inputs of a step log, and see whether it decides the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from inflight.core.errors import Rejected, StepFailed
from inflight.core.output import Idle, SchedulerOutput
from inflight.core.scheduler import Scheduler
from inflight.engine.recorder import Aborted, Added, Line, Scheduled, Updated


class Decision(NamedTuple):
    """One step as it was recorded and as it was decided again."""

    recorded: SchedulerOutput
    replayed: SchedulerOutput | Idle


def replay(log: Iterable[Line], scheduler: Scheduler) -> Iterator[Decision]:
    """Feed every recorded input, at its recorded time, to ``scheduler``; yield each decision beside its twin."""
    for line in log:
        match line:
            case Added(now_s, request):
                try:
                    scheduler.add(request, now_s)
                except Rejected as rejected:
                    if line.rejected is not rejected.reason:
                        raise
            case Aborted(now_s, request_id):
                scheduler.abort(request_id, now_s)
            case Scheduled(now_s, recorded):
                output = scheduler.schedule(recorded.lane, now_s)
                yield Decision(recorded, output)
            case Updated(now_s, _, result, failure, stops):
                if not isinstance(output, SchedulerOutput):
                    return
                scheduler.update(output, result or StepFailed(failure or ""), dict(stops), now_s)
