"""When a request-level batch leaves, and with whom: a pure function of who waits, the time, and the trigger.

A batch leaves as soon as it is full: at ``max_rows`` (or a preferred size), or when the next in the order would not
fit. Otherwise it leaves when the window closes that the arrival of the oldest waiting row has opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from inflight.core.sequence import Sequence
from inflight.schedulers.config import Trigger


class Batch(NamedTuple):
    """The rows that leave together, in the one order; none: wait, until ``wake_at_s`` if nobody comes before."""

    rows: list[Sequence]
    wake_at_s: float | None = None


def form_batch(
    waiting: Iterable[Sequence],
    trigger: Trigger,
    now_s: float,
    is_flushed: Callable[[Sequence], bool],
    fits_memory: Callable[[list[Sequence]], bool],
) -> Batch:
    """Choose the next batch: of the bins that are ready, the one whose first row is first in the one order.

    ``is_flushed`` tells of a row that it need not wait for others; ``fits_memory`` tells of rows whether they can run
    together to their ends; it must hold for any row alone.
    """
    bins: dict[int, list[Sequence]] = {}
    for seq in waiting:
        bins.setdefault(bisect_left(trigger.length_bins, seq.num_prompt_tokens), []).append(seq)
    wakes_s = []
    for rows in sorted(bins.values(), key=lambda rows: rows[0].key):
        closes_s = min(seq.request.arrival_s for seq in rows) + trigger.window_s
        due = closes_s <= now_s or any(map(is_flushed, rows))
        if (size := _leaving(rows, trigger, due, fits_memory)) > 0:
            return Batch(rows[:size])
        wakes_s.append(closes_s)
    wake_at_s = min(wakes_s, default=float("inf"))
    return Batch([], None if wake_at_s == float("inf") else wake_at_s)


def _leaving(rows: list[Sequence], trigger: Trigger, due: bool, fits_memory: Callable[[list[Sequence]], bool]) -> int:
    """How many of the first rows leave now; 0: wait."""
    size = 1
    while size < min(len(rows), trigger.max_rows) and _fits(rows[: size + 1], trigger, fits_memory):
        size += 1
    full = size == trigger.max_rows or size < len(rows)
    preferred = max((one for one in trigger.preferred_rows if one <= size), default=0)
    return preferred or (size if full or due else 0)


def _fits(rows: list[Sequence], trigger: Trigger, fits_memory: Callable[[list[Sequence]], bool]) -> bool:
    if trigger.max_tokens is not None:
        longest = max(seq.num_prompt_tokens for seq in rows)
        num_new = sum(seq.max_num_tokens - seq.num_prompt_tokens for seq in rows)
        if len(rows) * longest + num_new > trigger.max_tokens:
            return False
    return fits_memory(rows)
