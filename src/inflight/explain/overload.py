"""Is a queue a burst that passes, or does more come than can be served?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from inflight.explain.timeline import Timeline

Sample = tuple[float, int]  # seconds, queue length from then on

_NUM_PARTS = 10  # of a window; the growth in each is one observation
_T99 = 3.2498  # Student's t, two-sided 99 %, 9 degrees of freedom


class Verdict(StrEnum):
    """What the queue says about the load."""

    IDLE = "idle"  # nobody waited
    BURST = "burst"  # every queue drained within drain_s
    BACKLOG = "backlog"  # a queue stood for longer than drain_s, without growing significantly
    SUSTAINED = "sustained"  # and one that stood for longer than drain_s grew


@dataclass(frozen=True, slots=True)
class Overload:
    """A verdict and its numbers; the slope, in requests a second, is that of the window that grew most surely."""

    verdict: Verdict
    longest_queue_s: float  # the longest time for which somebody waited
    max_queue: int
    slope_per_s: float
    slope_low_per_s: float  # the 99 % interval of the slope
    slope_high_per_s: float
    window_s: float

    def __str__(self) -> str:
        queue = f"up to {self.max_queue} waited, and somebody for {self.longest_queue_s:.2f} s on end"
        moved = "grew" if self.slope_per_s >= 0 else "shrank"
        slope = (
            f"over {self.window_s:.2f} s the queue {moved} by {abs(self.slope_per_s):.2f} requests a second "
            f"(99 %: {self.slope_low_per_s:.2f} to {self.slope_high_per_s:.2f})"
        )
        match self.verdict:
            case Verdict.IDLE:
                return "queue: nobody waited"
            case Verdict.BURST:
                return f"queue: burst; {queue}"
            case Verdict.BACKLOG:
                return f"queue: backlog, not growing for sure; {queue}; {slope}"
            case Verdict.SUSTAINED:
                return f"queue: sustained overload; {queue}; {slope}"


def queue_samples(timeline: Timeline) -> list[Sample]:
    """The queue at the start of each step, and once more at the end of the last."""
    samples = [(step.start_s, step.num_waiting) for step in timeline.steps]
    return [*samples, *((step.end_s, step.num_waiting) for step in timeline.steps[-1:])]


def judge(samples: Sequence[Sample], drain_s: float = 10.0, window_s: float = 30.0) -> Overload:
    """The verdict on a queue.

    ``samples`` are ordered by time; the queue keeps its length until the next sample, and the last one ends it. A
    window of ``window_s`` (shorter, if a queue stands for less) moves over each queue that stood for longer than
    ``drain_s``, by half its length. Its slope is the mean growth of ten equal parts, and the interval comes from how
    those differ (the method of batch means): lengths themselves depend on each other far too much for a regression's
    own interval. Raises ``ValueError`` for times that go backwards or settings that are not positive.
    """
    if not (drain_s > 0 and window_s > 0):
        raise ValueError(f"drain_s and window_s must be above 0, got {drain_s} and {window_s}")
    if any(before[0] > after[0] for before, after in pairwise(samples)):
        raise ValueError("the samples of a queue must be ordered by time")
    queues = list(_queues(samples))
    longest_s = max((end - start for start, end in queues), default=0.0)
    max_queue = max((length for _, length in samples), default=0)
    slopes = [
        (*_slope(samples, begin, begin + size), size)
        for start, end in queues
        if end - start > drain_s
        for size in (min(window_s, end - start),)
        for begin in _begins(start, end, size)
    ]
    if not slopes:
        return Overload(Verdict.BURST if queues else Verdict.IDLE, longest_s, max_queue, 0.0, 0.0, 0.0, 0.0)
    slope, half, size = max(slopes, key=lambda one: one[0] - one[1])
    verdict = Verdict.SUSTAINED if slope - half > 0 else Verdict.BACKLOG
    return Overload(verdict, longest_s, max_queue, slope, slope - half, slope + half, size)


def _queues(samples: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    """When a queue stood: from the first sample with somebody in it to the next with nobody, or to the last."""
    since: float | None = None
    for now_s, length in samples:
        if length and since is None:
            since = now_s
        elif not length and since is not None:
            yield since, now_s
            since = None
    if since is not None and samples[-1][0] > since:
        yield since, samples[-1][0]


def _begins(start: float, end: float, size: float) -> Iterator[float]:
    num_steps = math.ceil((end - start - size) / (size / 2) - 1e-9)
    for index in range(num_steps + 1):
        yield min(start + index * size / 2, end - size)


def _slope(samples: Sequence[Sample], start: float, end: float) -> tuple[float, float]:
    """The mean growth a second over [start, end], and half the width of its 99 % interval."""
    part_s = (end - start) / _NUM_PARTS
    lengths = [_length_at(samples, start + index * part_s) for index in range(_NUM_PARTS + 1)]
    growths = [(after - before) / part_s for before, after in pairwise(lengths)]
    mean = sum(growths) / _NUM_PARTS
    variance = sum((growth - mean) ** 2 for growth in growths) / (_NUM_PARTS - 1)
    return mean, _T99 * math.sqrt(variance / _NUM_PARTS)


def _length_at(samples: Sequence[Sample], now_s: float) -> int:
    return samples[max(bisect_right(samples, now_s, key=lambda sample: sample[0]) - 1, 0)][1]
