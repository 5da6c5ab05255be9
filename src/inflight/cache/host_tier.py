"""Blocks in the host's memory, for the KV of sequences that were preempted: out in one step, in again in a later one.

What comes in keeps its host blocks until the step that copies has ended well, so that a step that fails can be run
again.
"""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.manager import BlockTable
from inflight.cache.pool import BlockPool
from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockCopy
from inflight.core.request import SeqId


class HostTier:
    """Tables of host blocks, one for each sequence whose KV is here or on its way back."""

    def __init__(self, num_blocks: int) -> None:
        self.num_copied_out = 0  # blocks, ever
        self.num_copied_in = 0
        self._pool = BlockPool(num_blocks)
        self._tables: dict[SeqId, BlockTable] = {}
        self._coming_in: dict[SeqId, tuple[BlockCopy, ...]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that there are."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence has."""
        return self._pool.num_free

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks that a sequence has here."""
        return len(self._tables.get(seq_id, ()))

    def take_in(self, seq_id: SeqId, table: BlockTable) -> tuple[BlockCopy, ...] | None:
        """Give each block of a table one here, and say what to copy; ``None`` if there is no room for all of them."""
        if len(table) > self._pool.num_free:
            return None
        here = self._tables[seq_id] = self._pool.take(len(table))
        self.num_copied_out += len(table)
        return tuple(BlockCopy(True, block, host_block) for block, host_block in zip(table, here, strict=True))

    def hand_back(self, seq_id: SeqId, table: BlockTable, num_found: int) -> tuple[BlockCopy, ...]:
        """What to copy into a sequence's new table, whose first ``num_found`` blocks hold what they must already."""
        here = self._tables.get(seq_id, ())
        pairs = list(zip(table, here, strict=False))[num_found:]
        copies = tuple(BlockCopy(False, block, host_block) for block, host_block in pairs)
        if here:
            self._coming_in[seq_id] = copies
        self.num_copied_in += len(copies)
        return copies

    def coming_in(self, seq_id: SeqId) -> tuple[BlockCopy, ...]:
        """The copies that a sequence came back with, until its step has ended well."""
        return self._coming_in.get(seq_id, ())

    def arrived(self, seq_id: SeqId) -> None:
        """The step that a sequence came back in has ended well."""
        if seq_id in self._coming_in:
            self.drop(seq_id)

    def drop(self, seq_id: SeqId) -> None:
        """Free what a sequence has here; one that has nothing is ignored."""
        self._pool.release(self._tables.pop(seq_id, ()))
        self._coming_in.pop(seq_id, None)

    def check(self, live: Collection[SeqId]) -> None:
        """Raise ``InvariantViolation`` unless only ``live`` sequences have blocks and every block is accounted for."""
        if strangers := self._tables.keys() - set(live):
            raise InvariantViolation(f"sequences that have ended have host blocks: {sorted(strangers)}")
        self._pool.check(self._tables.values())
