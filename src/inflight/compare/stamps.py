"""What only the step log knows: when tokens were computed, who waited how long, and how long the engine paused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from inflight.core.request import SeqId
from inflight.engine.recorder import Added, Scheduled
from inflight.explain.log import EngineLog, StepDone
from inflight.schedulers.config import RequestLevelConfig


@dataclass(slots=True)
class Stamps:
    """One request, on the engine's clock."""

    arrival_s: float
    first_step_s: float | None = None
    computed: list[tuple[float, int]] = field(default_factory=list)  # (when, tokens), whether or not given out

    @property
    def queue_s(self) -> float | None:
        """From its arrival to the start of its first step."""
        return None if self.first_step_s is None else self.first_step_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """From its arrival to its first token, computed."""
        return self.computed[0][0] - self.arrival_s if self.computed else None

    @property
    def tpot_s(self) -> float | None:
        """(Last token - first token) / (n - 1), as they were computed; None for fewer than two."""
        num_later = sum(count for _, count in self.computed) - 1
        return (self.computed[-1][0] - self.computed[0][0]) / num_later if num_later > 0 else None


def read_stamps(log: EngineLog) -> dict[str, Stamps]:
    """The stamps of every request, by its id. Raises ``ValueError`` for a log that is not valid."""
    stamps: dict[str, Stamps] = {}
    for event in log.events():
        match event:
            case Added(_, request) if event.rejected is None:
                stamps[request.request_id] = Stamps(request.arrival_s)
            case Scheduled(now_s, output):
                for new in output.new:
                    one = stamps[new.seq_id[0]]
                    one.first_step_s = now_s if one.first_step_s is None else one.first_step_s
            case StepDone(_, _, update) if update.result is not None:
                for row in update.result.sampled:
                    stamps[row.seq_id[0]].computed.append((update.now_s, len(row.tokens)))
    return stamps


def pauses_s(log: EngineLog) -> list[float]:
    """How long the engine did nothing between two steps although it could have, each time.

    Continuous: from the end of a step to the start of the next, if somebody runs or waits. Request-level: from the
    end of a batch to the start of the next, if by then all of its rows had come and it was full or its window closed;
    a batch that leaves for another reason (memory, a flush) is not counted. Raises as ``read_stamps`` does.
    """
    if isinstance(log.config, RequestLevelConfig):
        return list(_between_batches(log, log.config))
    return list(_between_steps(log))


def _between_steps(log: EngineLog) -> Iterator[float]:
    live: set[str] = set()
    end_s: float | None = None
    for event in log.events():
        match event:
            case Added(_, request) if event.rejected is None:
                live.add(request.request_id)
            case Scheduled(now_s) if end_s is not None:
                yield now_s - end_s
            case StepDone(_, _, update):
                live -= {one.seq_id[0] for one in update.events if one.finish_reason is not None}
                end_s = update.now_s if live else None


def _between_batches(log: EngineLog, config: RequestLevelConfig) -> Iterator[float]:
    arrival_s: dict[str, float] = {}
    batch: set[SeqId] = set()
    end_s = math.inf  # of the last batch
    for event in log.events():
        match event:
            case Added(_, request):
                arrival_s[request.request_id] = request.arrival_s
            case Scheduled(now_s, output) if not batch:
                batch = {new.seq_id for new in output.new}
                came_s = [arrival_s[request_id] for request_id, _ in batch]
                full_s = max(came_s) if len(batch) == config.num_seats else math.inf
                due_s = min(full_s, max(min(came_s) + config.trigger.window_s, max(came_s)))
                if due_s <= end_s < math.inf:
                    yield now_s - end_s
            case StepDone(_, _, update):
                batch -= {one.seq_id for one in update.events if one.finish_reason is not None}
                end_s = update.now_s
