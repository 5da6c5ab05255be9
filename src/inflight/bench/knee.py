"""Where a throughput curve stops rising: the knee, the plateau, the Pareto front."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.bench.intervals import Interval, mean_interval

MIN_GAIN = 0.05  # of throughput per doubling of the level; below it the curve is flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """What was found. Gains are shares, per doubling of the level: 0.05 is 5 %."""

    levels: tuple[int, ...]
    gains: tuple[Interval, ...]  # from each level to the next one
    knee: int | None  # the first level from which doubling gains less than ``MIN_GAIN``; None: there is none
    plateau: float | None  # mean throughput from the knee on
    falls_at: tuple[int, ...]  # levels with less throughput than the level before

    def as_text(self) -> str:
        """One line, or two."""
        if self.knee is None:
            where = f"no knee up to level {self.levels[-1]}"
            where += f": the last doubling gains {_percent(self.gains[-1])}" if self.gains else ""
        else:
            gain = self.gains[self.levels.index(self.knee)]
            where = f"knee at level {self.knee}: doubling it gains {_percent(gain)}, less than {MIN_GAIN:.0%}"
            if gain.high is not None and gain.high >= MIN_GAIN:
                where += " (the interval allows more: repeat more often to be sure)"
            where += f"; the plateau is {self.plateau:.4g} tokens/s"
        if not self.falls_at:
            return where
        return f"{where}\nnot monotone: throughput falls at level {', '.join(map(str, self.falls_at))}"


def find_knee(levels: Sequence[int], throughputs: Sequence[Sequence[float]]) -> Knee:
    """Find it in the throughputs of each level's runs; ``levels`` ascend, and each has as many runs.

    The gain from a level to the next is taken run by run, the n-th against the n-th, so that a slow hour of the
    machine, which slows both, cancels out.
    """
    gains = []
    for index in range(len(levels) - 1):
        doublings = math.log2(levels[index + 1] / levels[index])
        pairs = zip(throughputs[index], throughputs[index + 1], strict=True)
        gains.append(mean_interval([(after / before) ** (1 / doublings) - 1 for before, after in pairs]))
    means = [statistics.fmean(runs) for runs in throughputs]
    flat = next((index for index, gain in enumerate(gains) if gain.mean < MIN_GAIN), None)
    return Knee(
        levels=tuple(levels),
        gains=tuple(gains),
        knee=None if flat is None else levels[flat],
        plateau=None if flat is None else statistics.fmean(means[flat:]),
        falls_at=tuple(levels[index] for index in range(1, len(levels)) if means[index] < means[index - 1]),
    )


def pareto_front(costs: Sequence[float | None], throughputs: Sequence[float]) -> list[int]:
    """The points that no other one beats: less cost, or more throughput, than any that is as good in the other.

    Returns their indices by rising cost; points without a cost are none.
    """
    points = sorted(
        (cost, -throughput, index)
        for index, (cost, throughput) in enumerate(zip(costs, throughputs, strict=True))
        if cost is not None
    )
    front: list[int] = []
    best = -math.inf
    for _, negative, index in points:
        if -negative > best:
            front.append(index)
            best = -negative
    return front


def _percent(gain: Interval) -> str:
    text = f"{gain.mean:.1%}"
    return text if gain.low is None or gain.high is None else f"{text} [{gain.low:.1%}, {gain.high:.1%}]"
