"""How much memory a running row is promised, and whether one more row may enter.

A row is promised the blocks of all the tokens it has and of a few more, so that letting a row in cannot force a
preemption in the next steps. A row that has been preempted often enough is promised all it can ever need: from then
on it is never preempted again, which bounds the preemptions of every sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.cache.manager import KVCacheManager
from inflight.core.sequence import Sequence

NUM_HEADROOM_TOKENS = 2  # decoding steps that an admission must leave room for, in every running row


class Promises:
    """The promises made to running rows, in blocks of one KV cache."""

    def __init__(self, kv: KVCacheManager, max_preemptions: int) -> None:
        self._kv = kv
        self._max_preemptions = max_preemptions

    def is_protected(self, seq: Sequence) -> bool:
        """True once a row may not be preempted any more."""
        return seq.num_preemptions >= self._max_preemptions

    def num_blocks(self, seq: Sequence) -> int:
        """Blocks that a row is promised, those that it holds included."""
        if self.is_protected(seq):
            return self._kv.num_blocks_for(seq.max_num_stored)
        return self._kv.num_blocks_for(min(seq.num_tokens + NUM_HEADROOM_TOKENS, seq.max_num_stored))

    def num_spare_blocks(self, running: Iterable[Sequence]) -> int:
        """Blocks that are neither held by nor promised to a running row; negative where promises overlap."""
        return self._kv.num_blocks - sum(max(self.num_blocks(seq), self._kv.num_held(seq.seq_id)) for seq in running)
