"""The mean of a few runs, and how far it can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_Z = 1.959964  # the quantile 0.975 of the normal distribution
_T = (  # that of Student's t distribution, for 1, 2, ... degrees of freedom
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip


class Interval(NamedTuple):
    """A mean and its 95 % interval; one run has none."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]")


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean of at least one sample, and its 95 % interval by Student's t."""
    mean = statistics.fmean(samples)
    if len(samples) < 2:
        return Interval(mean, None, None)
    half = t_quantile(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    return Interval(mean, mean - half, mean + half)


def t_quantile(num_degrees: int) -> float:
    """The quantile 0.975 of Student's t; beyond 20 degrees of freedom to three digits (Cornish and Fisher, 1937)."""
    if num_degrees <= len(_T):
        return _T[num_degrees - 1]
    first, second = (_Z**3 + _Z) / 4, (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / num_degrees + second / num_degrees**2
