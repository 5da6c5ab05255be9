"""When requests arrive: processes with a mean rate, the same times for the same seed. The first comes at 0 s.

A rate is of the process: that of the times drawn comes closer to it the more there are. An infinite rate is all at
once. Raises ``ValueError`` for a value out of range, as every function here does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

ARRIVALS = ("replay", "constant", "poisson", "gamma", "on_off")  # replay: a trace's own times


def constant(num_requests: int, rate_per_s: float) -> list[float]:
    """One every ``1 / rate_per_s`` seconds."""
    return _times(num_requests, rate_per_s, lambda: 1 / rate_per_s)


def poisson(num_requests: int, rate_per_s: float, seed: int = 0) -> list[float]:
    """Independent users: exponential gaps, whose standard deviation is their mean."""
    return gamma(num_requests, rate_per_s, 1.0, seed)


def gamma(num_requests: int, rate_per_s: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Gaps of a gamma distribution with ``burstiness`` as its shape, as in ``vllm bench serve``.

    1 is Poisson, below 1 is burstier, above is more regular: the coefficient of variation is ``burstiness ** -0.5``.
    """
    _positive("burstiness", burstiness)
    draw = random.Random(seed)
    return _times(num_requests, rate_per_s, lambda: draw.gammavariate(burstiness, 1 / (rate_per_s * burstiness)))


def on_off(num_requests: int, rate_per_s: float, on_s: float, off_s: float, seed: int = 0) -> list[float]:
    """Bursts in a square wave: Poisson for ``on_s``, nothing for ``off_s``, again and again; ``rate_per_s`` overall."""
    _positive("on_s", on_s)
    if not 0 <= off_s < math.inf:
        raise ValueError(f"off_s must be at least 0 and finite, got {off_s}")
    period_s = on_s + off_s
    while_on = poisson(num_requests, rate_per_s * period_s / on_s, seed)
    return [period * period_s + since_s for period, since_s in (divmod(time, on_s) for time in while_on)]


def mean_rate_per_s(arrivals_s: Sequence[float]) -> float | None:
    """Requests after the first per second until the last, of times in order; None where no time passes."""
    span_s = arrivals_s[-1] - arrivals_s[0] if arrivals_s else 0.0
    return (len(arrivals_s) - 1) / span_s if span_s > 0 else None


def _times(num_requests: int, rate_per_s: float, gap_s: Callable[[], float]) -> list[float]:
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    if rate_per_s == math.inf:
        return [0.0] * num_requests
    _positive("rate_per_s", rate_per_s)
    return list(accumulate((gap_s() for _ in repeat(None, num_requests - 1)), initial=0.0))


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value}")
