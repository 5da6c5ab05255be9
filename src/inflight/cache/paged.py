"""Paged KV memory: block tables that grow block by block, all or nothing, after Kwon et al., SOSP 2023.

A table begins with findable blocks, which it may share with others, and goes on with blocks of its own.
"""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.host_tier import HostTier
from inflight.cache.manager import BlockTable, Grant, KVUsage, Reuse
from inflight.cache.pool import BlockPool
from inflight.cache.prefix import PrefixIndex
from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockCopy
from inflight.core.request import SeqId
from inflight.core.sequence import Sequence


class PagedKVCacheManager:
    """See ``KVCacheManager``: block tables over one pool of ``num_blocks`` blocks of ``block_size`` tokens.

    Without an index no sequence finds the blocks of another; without host blocks none is swapped out.
    """

    def __init__(
        self, num_blocks: int, block_size: int, index: PrefixIndex | None = None, num_host_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self._index = index
        self._pool = BlockPool(num_blocks, index.forget if index else None)
        self._host = HostTier(num_host_blocks)
        self._tables: dict[SeqId, BlockTable] = {}
        self._num_findable: dict[SeqId, int] = {}  # the first blocks of a table
        self._set_aside: dict[SeqId, int] = {}  # free blocks that only this sequence may take
        self._num_set_aside = 0

    @property
    def can_share(self) -> bool:
        """With an index."""
        return self._index is not None

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    def usage(self) -> KVUsage:
        """All counts of this instant."""
        pool, host = self._pool, self._host
        num_entries = sum(map(len, self._tables.values()))
        return KVUsage(
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_shared_blocks=pool.num_shared,
            num_repeated_entries=num_entries - (pool.num_blocks - pool.num_free),
            num_host_blocks=host.num_blocks,
            num_free_host_blocks=host.num_free_blocks,
            num_evicted_blocks=pool.num_evicted,
            num_swapped_out_blocks=host.num_copied_out,
            num_swapped_in_blocks=host.num_copied_in,
        )

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks that a sequence holds."""
        return len(self._tables.get(seq_id, ()))

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks that a sequence holds, in the order of its tokens."""
        return self._tables.get(seq_id, ())

    def find(self, seq: Sequence) -> Reuse:
        """See ``KVCacheManager``."""
        max_num_blocks = (seq.num_tokens - 1) // self.block_size
        found = self._index.find(seq, max_num_blocks) if self._index else ()
        num_stored = seq.num_computed if self._host.num_held(seq.seq_id) else 0
        num_tokens = max(len(found) * self.block_size, num_stored)
        return Reuse(num_tokens, found, sum(map(self._pool.is_held, found)))

    def admit(self, seq: Sequence, reuse: Reuse, num_tokens: int) -> Grant | None:
        """See ``KVCacheManager``."""
        seq_id, found = seq.seq_id, reuse.found
        num_new = self.num_blocks_for(num_tokens) - len(found)
        if num_new > self._pool.num_free - (len(found) - reuse.num_shared) - self._num_set_aside:
            return None
        self._pool.share(found)
        table = self._tables[seq_id] = found + self._pool.take(num_new)
        self._num_findable[seq_id] = len(found)
        return Grant(table, self._host.hand_back(seq_id, table, len(found)))

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """See ``KVCacheManager``."""
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
        """See ``KVCacheManager``."""
        self._put_aside(seq_id, max(0, self.num_blocks_for(num_tokens) - self.num_held(seq_id)))
        if self._num_set_aside > self._pool.num_free:
            raise InvariantViolation(f"{seq_id}: {self._num_set_aside} blocks set aside, {self._pool.num_free} free")

    def commit(self, seq: Sequence) -> None:
        """See ``KVCacheManager``."""
        seq_id = seq.seq_id
        self._host.arrived(seq_id)
        num_full, num_findable = seq.num_computed // self.block_size, self._num_findable.get(seq_id, 0)
        if self._index is None or num_full <= num_findable:
            return
        table = self._tables[seq_id]
        known = self._index.publish(seq, table[:num_full], num_findable)
        for own, block in zip(table[num_findable:], known, strict=False):
            if block == own:
                self._pool.make_findable(own)
            else:
                self._pool.share((block,))
                self._pool.release((own,))
        self._num_findable[seq_id] = num_findable + len(known)
        self._tables[seq_id] = table[:num_findable] + known + table[num_findable + len(known) :]

    def swap_out(self, seq: Sequence) -> tuple[BlockCopy, ...] | None:
        """See ``KVCacheManager``."""
        stored = self._tables[seq.seq_id][: self.num_blocks_for(seq.num_computed)]
        copies = self._host.take_in(seq.seq_id, stored)
        if copies is not None:
            self._free_here(seq.seq_id)
        return copies

    def coming_in(self, seq_id: SeqId) -> tuple[BlockCopy, ...]:
        """See ``KVCacheManager``."""
        return self._host.coming_in(seq_id)

    def free(self, seq_id: SeqId) -> None:
        """See ``KVCacheManager``."""
        self._free_here(seq_id)
        self._host.drop(seq_id)

    def check(self, running: Collection[SeqId], waiting: Collection[SeqId]) -> None:
        """See ``KVCacheManager``."""
        if strangers := (self._tables.keys() | self._set_aside.keys()) - set(running):
            raise InvariantViolation(f"sequences that do not run hold blocks: {sorted(strangers)}")
        if self._num_set_aside != sum(self._set_aside.values()) or self._num_set_aside > self._pool.num_free:
            raise InvariantViolation(f"{self._num_set_aside} blocks set aside: {self._set_aside}")
        self._host.check({*running, *waiting})
        self._pool.check(self._tables.values())
        if self._index:
            self._index.check(self._pool.findable)
        for seq_id, table in self._tables.items():
            num_findable = self._num_findable.get(seq_id, 0)
            if any((block in self._pool.findable) != (at < num_findable) for at, block in enumerate(table)):
                raise InvariantViolation(f"{seq_id}: not the first {num_findable} blocks of {table} are findable")

    def _free_here(self, seq_id: SeqId) -> None:
        self._pool.release(self._tables.pop(seq_id, ()))
        self._num_findable.pop(seq_id, None)
        self._put_aside(seq_id, 0)

    def _put_aside(self, seq_id: SeqId, num_blocks: int) -> None:
        self._num_set_aside += num_blocks - self._set_aside.pop(seq_id, 0)
        if num_blocks:
            self._set_aside[seq_id] = num_blocks
