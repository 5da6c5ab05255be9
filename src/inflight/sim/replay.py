"""Run a scheduler again on the inputs of a step log, and see whether it decides the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from inflight.core.errors import Rejected, StepFailed
from inflight.core.output import Idle, SchedulerOutput
from inflight.core.scheduler import Scheduler
from inflight.engine.recorder import Aborted, Added, Flushed, Line, Scheduled, Started, Updated


class Decision(NamedTuple):
    """One step as it was recorded and as it was decided again."""

    recorded: SchedulerOutput
    replayed: SchedulerOutput | Idle


def replay(log: Iterable[Line], scheduler: Scheduler) -> Iterator[Decision]:
    """Feed every recorded input, at its recorded time, to ``scheduler``; yield each decision beside its twin.

    ``log`` is what one engine wrote after its ``Started`` line. Raises ``ValueError`` where the next one begins, and
    for a step that ends without having been decided, as in a log that was cut at its beginning.
    """
    output: SchedulerOutput | Idle = Idle()
    for line in log:
        match line:
            case Started():
                raise ValueError("here another engine starts: replay it with a scheduler of its own")
            case Added(now_s, request):
                try:
                    scheduler.add(request, now_s)
                except Rejected as rejected:
                    if line.rejected is not rejected.reason:
                        raise
            case Aborted(now_s, request_id):
                scheduler.abort(request_id, now_s)
            case Flushed(now_s):
                scheduler.flush(now_s)
            case Scheduled(now_s, recorded):
                output = scheduler.schedule(recorded.lane, now_s)
                yield Decision(recorded, output)
            case Updated(now_s, step, result, failure, stops):
                if not isinstance(output, SchedulerOutput) or output.step != step:
                    raise ValueError(f"step {step} ends, but the last one decided was {output}")
                scheduler.update(output, result or StepFailed(failure or ""), dict(stops), now_s)
                scheduler.transitions()  # nobody asks for them here, and they would pile up
