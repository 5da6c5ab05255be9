"""Percentiles of a sample, and whether the sample is large enough to say so."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Summary:
    """The ``QUANTILES`` of ``count`` samples, in the samples' unit; None without a sample."""

    count: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


def enough_for(count: int, quantile: float) -> bool:
    """True if at least 100 of so many samples lie beyond the quantile: count >= 100 / (1 - quantile)."""
    return count * (1.0 - quantile) >= 100.0 - 1e-6


def percentile(ordered: Sequence[float], quantile: float) -> float | None:
    """The smallest sample that at least the share ``quantile`` of all samples does not exceed (nearest rank)."""
    if not ordered:
        return None
    return ordered[max(math.ceil(quantile * len(ordered) - 1e-9), 1) - 1]


def summarize(samples: Collection[float]) -> Summary:
    """Summarise samples given in any order."""
    ordered = sorted(samples)
    return Summary(len(ordered), *(percentile(ordered, quantile) for quantile in QUANTILES))


def describe(name: str, samples: Collection[float]) -> str:
    """One phrase for a log line about samples in seconds; a ``?`` marks a percentile of too few samples."""
    summary = summarize(samples)
    if summary.p50 is None or summary.p99 is None:
        return f"{name}: none"
    p50, p99 = (
        f"{value * 1000:.0f} ms{'' if enough_for(summary.count, quantile) else '?'}"
        for value, quantile in ((summary.p50, 0.5), (summary.p99, 0.99))
    )
    return f"{name} p50 {p50} p99 {p99} (n={summary.count})"
