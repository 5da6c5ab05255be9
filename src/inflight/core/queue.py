"""The one order, and the rows that wait in it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from inflight.core.sequence import OrderKey, Sequence

by_order = attrgetter("key")


def order_key(policy: str, priority: int, ageing_s: float, now_s: float, index: int) -> OrderKey:
    """The place of an arrival in the one order; smaller is served earlier.

    ``fcfs`` orders by arrival alone. ``priority`` orders by class, lower first, with linear ageing: a row rises by
    one class every ``ageing_s`` seconds. Since all rows age at the same rate, comparing ``priority * ageing_s +
    arrival`` is comparing the aged classes at any later time: the order never has to be sorted again.
    """
    if policy == "fcfs":
        return (0.0, index)
    return (priority * ageing_s + now_s, index)


class WaitingQueue:
    """Sequences that wait, sorted by ``key``."""

    def __init__(self) -> None:
        self._rows: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Sequence]:
        """The rows, in their order."""
        return iter(self._rows)

    def push(self, seq: Sequence) -> None:
        """Put a row in its place in the order; a preempted one gets its old place back."""
        insort(self._rows, seq, key=by_order)

    def remove(self, seq: Sequence) -> None:
        """Take a row out; it must be in the queue."""
        del self._rows[bisect_left(self._rows, seq.key, key=by_order)]
