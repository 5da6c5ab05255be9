"""Who gives up its memory when a running row needs a block and none is free."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from inflight.core.sequence import Sequence
from inflight.schedulers.admission import Promises


def victim_index(running: Rows[Sequence], position: int, promises: Promises) -> int | None:
    """The index of the last row of the order that may be preempted for the row at ``position``.

    Only rows from ``position`` on qualify: those before it are in this step already, and nothing decided in a step
    is undone in it. The row itself is the last resort. ``None`` if all of them are protected.
    """
    for index in range(len(running) - 1, position - 1, -1):
        if not promises.is_protected(running[index]):
            return index
    return None
