"""Paged KV memory: block tables that grow block by block, all or nothing, after Kwon et al., SOSP 2023."""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.manager import BlockTable
from inflight.cache.pool import BlockPool
from inflight.core.errors import InvariantViolation
from inflight.core.request import SeqId


class PagedKVCacheManager:
    """See ``KVCacheManager``: block tables over one pool of ``num_blocks`` blocks of ``block_size`` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._tables: dict[SeqId, BlockTable] = {}
        self._set_aside: dict[SeqId, int] = {}  # free blocks that only this sequence may take
        self._num_set_aside = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks that a sequence holds."""
        return len(self._tables.get(seq_id, ()))

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks that a sequence holds, in the order of its tokens."""
        return self._tables.get(seq_id, ())

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """Grow the table of ``seq_id`` to cover ``num_tokens`` tokens and return it.

        Returns ``None``, and changes nothing, if the blocks that are free for this sequence do not suffice.
        """
        table = self._tables.get(seq_id, ())
        num_missing = self.num_blocks_for(num_tokens) - len(table)
        if num_missing > 0:
            num_own = self._set_aside.get(seq_id, 0)
            if num_missing > self._pool.num_free - self._num_set_aside + num_own:
                return None
            if num_own:
                self._put_aside(seq_id, max(0, num_own - num_missing))
            table += self._pool.take(num_missing)
            self._tables[seq_id] = table
        return table

    def set_aside(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keep free blocks for ``seq_id`` until it holds enough for ``num_tokens`` tokens, or is freed."""
        self._put_aside(seq_id, max(0, self.num_blocks_for(num_tokens) - self.num_held(seq_id)))
        if self._num_set_aside > self._pool.num_free:
            raise InvariantViolation(f"{seq_id}: {self._num_set_aside} blocks set aside, {self._pool.num_free} free")

    def free(self, seq_id: SeqId) -> None:
        """Give back all blocks of a sequence; one that holds none is ignored."""
        self._pool.release(self._tables.pop(seq_id, ()))
        self._put_aside(seq_id, 0)

    def check(self, live: Collection[SeqId]) -> None:
        """Raise ``InvariantViolation`` unless only ``live`` sequences hold blocks and every block is accounted for."""
        if strangers := (self._tables.keys() | self._set_aside.keys()) - set(live):
            raise InvariantViolation(f"sequences that do not run hold blocks: {sorted(strangers)}")
        if self._num_set_aside != sum(self._set_aside.values()) or self._num_set_aside > self._pool.num_free:
            raise InvariantViolation(f"{self._num_set_aside} blocks set aside: {self._set_aside}")
        self._pool.check(self._tables.values())

    def _put_aside(self, seq_id: SeqId, num_blocks: int) -> None:
        self._num_set_aside += num_blocks - self._set_aside.pop(seq_id, 0)
        if num_blocks:
            self._set_aside[seq_id] = num_blocks
