"""Contiguous KV memory: every sequence reserves room for the longest one, in one piece, as before paging.

It is the baseline that paging is measured against: nothing is fragmented outside the pieces, and most of what is
inside them is never written.
"""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.manager import BlockTable
from inflight.cache.paged import PagedKVCacheManager
from inflight.core.request import SeqId


class ContiguousKVCacheManager:
    """See ``KVCacheManager``: paging with pages of ``max_model_len`` tokens, told in blocks of ``block_size``."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.block_size = block_size
        self._piece = -(-max_model_len // block_size)  # blocks of one sequence
        self._pieces = PagedKVCacheManager(num_blocks // self._piece, self._piece * block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks of all whole pieces; what is left over is never used."""
        return self._pieces.num_blocks * self._piece

    @property
    def num_free_blocks(self) -> int:
        """Blocks of pieces that no sequence holds."""
        return self._pieces.num_free_blocks * self._piece

    def num_blocks_for(self, num_tokens: int) -> int:
        """A whole piece, however few the tokens are."""
        return self._pieces.num_blocks_for(num_tokens) * self._piece

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks of the piece that a sequence holds."""
        return self._pieces.num_held(seq_id) * self._piece

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks of the piece, one after the other."""
        return self._blocks(self._pieces.block_table(seq_id))

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """Reserve a piece, unless the sequence has one; ``None`` if all are held."""
        table = self._pieces.allocate(seq_id, num_tokens)
        return None if table is None else self._blocks(table)

    def set_aside(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keep a piece for a sequence that has none."""
        self._pieces.set_aside(seq_id, num_tokens)

    def free(self, seq_id: SeqId) -> None:
        """Give the piece back."""
        self._pieces.free(seq_id)

    def check(self, live: Collection[SeqId]) -> None:
        """See ``KVCacheManager``."""
        self._pieces.check(live)

    def _blocks(self, pieces: BlockTable) -> BlockTable:
        return tuple(block for piece in pieces for block in range(piece * self._piece, (piece + 1) * self._piece))
