"""The KV cache as a scheduler sees it: block tables that grow all or nothing, after Kwon et al., SOSP 2023."""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.pool import BlockPool
from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockId
from inflight.core.request import SeqId

BlockTable = tuple[BlockId, ...]


class KVCacheManager:
    """Block tables of the running sequences over one pool of ``num_blocks`` blocks of ``block_size`` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._tables: dict[SeqId, BlockTable] = {}

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

    def allocate(self, seq_id: SeqId, num_tokens: int, num_keep_free: int = 0) -> BlockTable | None:
        """Grow the table of ``seq_id`` to cover ``num_tokens`` tokens and return it.

        Returns ``None``, and changes nothing, if that would leave fewer than ``num_keep_free`` blocks free.
        """
        table = self._tables.get(seq_id, ())
        num_missing = self.num_blocks_for(num_tokens) - len(table)
        if num_missing > 0:
            if num_missing > self._pool.num_free - num_keep_free:
                return None
            table += self._pool.take(num_missing)
            self._tables[seq_id] = table
        return table

    def free(self, seq_id: SeqId) -> None:
        """Give back all blocks of a sequence; one that holds none is ignored."""
        self._pool.release(self._tables.pop(seq_id, ()))

    def check(self, live: Collection[SeqId]) -> None:
        """Raise ``InvariantViolation`` unless only ``live`` sequences hold blocks and every block is accounted for."""
        if strangers := self._tables.keys() - set(live):
            raise InvariantViolation(f"sequences that do not run hold blocks: {sorted(strangers)}")
        self._pool.check(self._tables.values())
