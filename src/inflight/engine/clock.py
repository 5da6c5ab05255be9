"""Where the engine's time comes from. Schedulers have no clock: they are told."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes backwards."""

    def now_s(self) -> float:
        """Seconds since an arbitrary origin."""


class WallClock:
    """The machine's monotonic clock: the same for all processes of one machine."""

    def now_s(self) -> float:
        """Seconds since an arbitrary origin, often the machine's start."""
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Seconds of simulated time."""
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        """Move forward to ``now_s``; a time in the past is ignored."""
        self._now_s = max(self._now_s, now_s)
