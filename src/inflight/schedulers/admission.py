"""How much memory a running row is promised, and whether one more row may enter.

A row is promised the blocks of all the tokens it has and of a few more, so that letting a row in cannot force a
preemption in the next steps. A row that has been preempted often enough is promised all it can ever need: from then
on it is never preempted again, which bounds the preemptions of every sequence. That much holds whatever the policy; a
policy looks further ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import Protocol

from inflight.cache.manager import KVCacheManager, Reuse
from inflight.core.sequence import Sequence
from inflight.schedulers.config import ContinuousConfig

NUM_HEADROOM_TOKENS = 2  # decoding steps that an admission must leave room for, in every running row


class Promises:
    """The promises made to running rows, in blocks of one KV cache."""

    def __init__(self, kv: KVCacheManager, max_preemptions: int, num_reserve_blocks: int) -> None:
        self._kv = kv
        self._max_preemptions = max_preemptions
        self._num_reserve_tokens = num_reserve_blocks * kv.block_size

    def is_protected(self, seq: Sequence) -> bool:
        """True once a row may not be preempted any more."""
        return seq.num_preemptions >= self._max_preemptions

    def num_blocks(self, seq: Sequence) -> int:
        """Blocks that a row is promised, those that it holds included."""
        if self.is_protected(seq):
            return self._kv.num_blocks_for(seq.max_num_stored)
        num_tokens = max(seq.num_tokens + NUM_HEADROOM_TOKENS, seq.num_prompt_tokens + self._num_reserve_tokens)
        return self._kv.num_blocks_for(min(num_tokens, seq.max_num_stored))

    def num_spare_blocks(self, running: Iterable[Sequence]) -> int:
        """Blocks that are neither held by nor promised to a running row; negative where promises overlap."""
        num_promised = sum(max(0, self.num_blocks(seq) - self._kv.num_held(seq.seq_id)) for seq in running)
        return self._kv.num_free_blocks - num_promised

    def can_keep(self, newcomer: Sequence, reuse: Reuse, running: Iterable[Sequence]) -> bool:
        """Whether all promises, and the one to a newcomer, can be kept if it enters."""
        return self.num_blocks(newcomer) - reuse.num_shared <= self.num_spare_blocks(running)


class Admission(Protocol):
    """Whether a newcomer whose promise can be kept may enter beside ``running`` rows, of which there is one or more."""

    def admits(self, newcomer: Sequence, reuse: Reuse, running: Rows[Sequence]) -> bool:
        """Decide on the row at the head of the queue."""

    def on_preemption(self) -> None:
        """A running row had to give its memory up."""


class WhatFits:
    """Promises are enough."""

    def admits(self, newcomer: Sequence, reuse: Reuse, running: Rows[Sequence]) -> bool:
        """See ``Admission``."""
        return True

    def on_preemption(self) -> None:
        """Nothing follows from it."""


class ReserveAll:
    """Rows enter if all rows together fit as long as they may become: nobody is ever preempted."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv

    def admits(self, newcomer: Sequence, reuse: Reuse, running: Rows[Sequence]) -> bool:
        """See ``Admission``."""
        return sum(self._kv.num_blocks_for(row.max_num_stored) for row in (*running, newcomer)) <= self._kv.num_blocks

    def on_preemption(self) -> None:
        """There is none."""


class BelowWatermark:
    """Rows enter up to the high mark. After a preemption nobody does until the low mark is reached from above.

    Without such a pause the memory that a preemption frees goes to the next row, and its growth preempts again. The
    pause ends, too, when one row is left that runs, perhaps for long; and no mark counts where all rows fit as long as
    they may become.
    """

    def __init__(self, kv: KVCacheManager, low: float, high: float) -> None:
        self._kv = kv
        self._low_blocks, self._high_blocks = low * kv.num_blocks, high * kv.num_blocks
        self._reserve = ReserveAll(kv)
        self._paused = False

    def admits(self, newcomer: Sequence, reuse: Reuse, running: Rows[Sequence]) -> bool:
        """See ``Admission``."""
        num_held = self._kv.num_blocks - self._kv.num_free_blocks
        self._paused = self._paused and num_held > self._low_blocks and len(running) > 1
        num_more = self._kv.num_blocks_for(newcomer.num_tokens) - reuse.num_shared
        below = not self._paused and num_held + num_more <= self._high_blocks
        return below or self._reserve.admits(newcomer, reuse, running)

    def on_preemption(self) -> None:
        """See ``Admission``."""
        self._paused = True


class FuturePeak:
    """Rows enter if the memory suffices at its fullest, should every row run as long as it may, a token a step.

    It is fullest when one of the rows ends: those that go on have then grown by as many tokens as it had left (Gong et
    al., arXiv:2507.10150). Blocks that rows share are counted for each of them.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv

    def admits(self, newcomer: Sequence, reuse: Reuse, running: Rows[Sequence]) -> bool:
        """See ``Admission``."""
        rows = sorted((*running, newcomer), key=_num_left, reverse=True)
        for end, last in enumerate(rows, 1):
            sizes = (min(row.num_tokens + _num_left(last), row.max_num_stored) for row in rows[:end])
            if sum(map(self._kv.num_blocks_for, sizes)) > self._kv.num_blocks:
                return False
        return True

    def on_preemption(self) -> None:
        """Nothing follows from it."""


def make_admission(config: ContinuousConfig, kv: KVCacheManager) -> Admission:
    """The policy that a configuration names."""
    if config.admission == "watermark":
        return BelowWatermark(kv, config.watermark_low, config.watermark_high)
    if config.admission == "future-peak":
        return FuturePeak(kv)
    if config.admission == "reserve-all":
        return ReserveAll(kv)
    return WhatFits()


def _num_left(seq: Sequence) -> int:
    return seq.max_num_tokens - seq.num_tokens
