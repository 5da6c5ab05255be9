"""A discrete-event loop around the very engine that serves: arrivals and step ends, in the order of virtual time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from inflight.core.errors import InvariantViolation, Rejected
from inflight.core.output import Idle, LaneId, SchedulerOutput, StepResult
from inflight.core.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore


def simulate(core: EngineCore, lanes: tuple[LaneId, ...], clock: VirtualClock, requests: Iterable[Request]) -> None:
    """Run until every request has ended; each arrives at its ``arrival_s`` on ``clock``, which ``core`` must use.

    What happened is seen by the core's observers. A request that arrives exactly when a step ends can join the next
    one. A step that fails as a whole takes no time. Once nothing else is due the core is flushed: a batch that is
    not full, and has no window that closes, need not wait for ever.
    """
    arrivals = deque(sorted(requests, key=lambda request: request.arrival_s))
    ends: list[tuple[float, int, SchedulerOutput, StepResult]] = []  # a heap; the count keeps ties in order
    number = count()
    idle = list(lanes)
    flushed = False
    while arrivals or ends or core.has_work:
        wake_at_s = math.inf
        for lane in tuple(idle):
            while isinstance(output := core.begin(lane), SchedulerOutput):
                result = core.execute(output)
                if isinstance(result, StepResult):
                    idle.remove(lane)
                    heapq.heappush(ends, (clock.now_s() + result.duration_s, next(number), output, result))
                    break
                core.finish(output, result)
            if isinstance(output, Idle) and output.wake_at_s is not None:
                wake_at_s = min(wake_at_s, output.wake_at_s)
        if not (arrivals or ends or wake_at_s < math.inf):
            if not core.has_work:
                return
            if flushed:
                raise InvariantViolation("requests are left, but nothing can run and nobody will come")
            core.flush()
            flushed = True
            continue
        next_arrival_s = arrivals[0].arrival_s if arrivals else math.inf
        next_end_s = ends[0][0] if ends else math.inf
        clock.advance_to(min(next_arrival_s, next_end_s, wake_at_s))
        while ends and ends[0][0] <= clock.now_s():
            _, _, output, result = heapq.heappop(ends)
            core.finish(output, result)
            idle.append(output.lane)
        while arrivals and arrivals[0].arrival_s <= clock.now_s():
            with suppress(Rejected):  # the observers know
                core.add(arrivals.popleft())
