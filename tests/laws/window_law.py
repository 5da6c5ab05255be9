"""When a request-level batch must leave, and with whom: the reference, written as a formula over arrivals.

start = max(engine free, min(arrival of the row that makes it full, arrival of the oldest + window, flush))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from inflight.core.request import SeqId
from inflight.schedulers.config import DynamicConfig, RequestLevelConfig, StaticConfig


@dataclass
class Waiting:
    seq_id: SeqId
    key: tuple[float, int]
    arrival_s: float
    num_prompt: int
    num_new: int  # at most
    num_blocks: int  # at most
    flush_s: float = math.inf  # when it was told not to wait for others


class Departure(NamedTuple):
    start_s: float
    rows: list[SeqId]
    why: str


class WindowLaw:
    def __init__(self, config: RequestLevelConfig, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.max_tokens, self.preferred, self.bounds = math.inf, [], ()
        match config:
            case StaticConfig():
                self.max_rows = config.batch_size
                window_ms = config.fill_timeout_ms
            case DynamicConfig():
                self.max_rows = config.max_batch_size
                window_ms = config.max_wait_ms
                self.max_tokens = config.max_tokens_in_batch or math.inf
                self.preferred = sorted(config.preferred_batch_size)
                self.bounds = config.length_bins
        self.window_s = math.inf if window_ms is None else window_ms / 1000

    def bin_of(self, num_prompt: int) -> int:
        return sum(num_prompt > bound for bound in self.bounds)

    def next_batch(self, waiting: Iterable[Waiting], free_s: float) -> Departure:
        """What leaves next if nobody else comes."""
        bins: dict[int, list[Waiting]] = {}
        for row in sorted(waiting, key=lambda row: row.key):
            bins.setdefault(self.bin_of(row.num_prompt), []).append(row)
        ready = {number: self.ready(rows) for number, rows in bins.items()}
        start_s = max(free_s, min((moment_s for moment_s, _ in ready.values()), default=math.inf))
        due = [number for number, (moment_s, _) in ready.items() if moment_s <= start_s]
        if start_s == math.inf:
            return Departure(start_s, [], "never")
        chosen = min(due, key=lambda number: bins[number][0].key)
        rows = bins[chosen]
        size = len(self.share(rows))
        preferred = [one for one in self.preferred if one <= size]
        return Departure(start_s, [row.seq_id for row in rows[: max(preferred, default=size)]], ready[chosen][1])

    def ready(self, rows: list[Waiting]) -> tuple[float, str]:
        """When these rows of one bin need not wait any longer, and why."""
        arrivals = sorted(row.arrival_s for row in rows)
        whys = ((self.full([row for row in rows if row.arrival_s <= moment_s]), moment_s) for moment_s in arrivals)
        why, full_s = next(((why, moment_s) for why, moment_s in whys if why), ("", math.inf))
        moments = [(full_s, why), (arrivals[0] + self.window_s, "window"), (min(row.flush_s for row in rows), "flush")]
        return min(moments, key=lambda moment: moment[0])

    def full(self, rows: list[Waiting]) -> str:
        """Why a batch of these rows gains nothing by waiting; empty if it may."""
        sharing = self.share(rows)
        if any(size <= len(sharing) for size in self.preferred):
            return "preferred"
        if len(sharing) == self.max_rows:
            return "size"
        if len(sharing) < len(rows):
            return "memory" if self.within_tokens(rows[: len(sharing) + 1]) else "budget"
        return ""

    def share(self, rows: list[Waiting]) -> list[Waiting]:
        """The longest beginning of ``rows`` that may share a batch."""
        sizes = range(1, min(len(rows), self.max_rows) + 1)
        allowed = [n for n in sizes if n == 1 or (self.within_tokens(rows[:n]) and self.within_memory(rows[:n]))]
        return rows[: max(allowed)]

    def within_tokens(self, rows: list[Waiting]) -> bool:
        rectangle = len(rows) * max(row.num_prompt for row in rows)
        return rectangle + sum(row.num_new for row in rows) <= self.max_tokens

    def within_memory(self, rows: list[Waiting]) -> bool:
        return sum(row.num_blocks for row in rows) <= self.num_blocks
