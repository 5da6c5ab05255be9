"""Contiguous KV memory: every sequence reserves room for the longest one, in one piece, as before paging.

It is the baseline that paging is measured against: nothing is fragmented outside the pieces, and most of what is
inside them is never written.
"""

from __future__ import annotations

from collections.abc import Collection

from inflight.cache.manager import BlockTable, Grant, KVUsage, Reuse
from inflight.cache.paged import PagedKVCacheManager
from inflight.core.output import BlockCopy
from inflight.core.request import SeqId
from inflight.core.sequence import Sequence


class ContiguousKVCacheManager:
    """See ``KVCacheManager``: paging with pages of ``max_model_len`` tokens, told in blocks of ``block_size``.

    Nothing is shared or swapped out: who runs has all the memory that it can need.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.block_size = block_size
        self._piece = -(-max_model_len // block_size)  # blocks of one sequence
        self._pieces = PagedKVCacheManager(num_blocks // self._piece, self._piece * block_size)

    @property
    def can_share(self) -> bool:
        """Never."""
        return False

    @property
    def num_blocks(self) -> int:
        """Blocks of all whole pieces; what is left over is never used."""
        return self._pieces.num_blocks * self._piece

    @property
    def num_free_blocks(self) -> int:
        """Blocks of pieces that no sequence holds."""
        return self._pieces.num_free_blocks * self._piece

    def usage(self) -> KVUsage:
        """All counts of this instant."""
        return KVUsage(self.num_blocks, self.num_free_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        """A whole piece, however few the tokens are."""
        return self._pieces.num_blocks_for(num_tokens) * self._piece

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks of the piece that a sequence holds."""
        return self._pieces.num_held(seq_id) * self._piece

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks of the piece, one after the other."""
        return self._blocks(self._pieces.block_table(seq_id))

    def find(self, seq: Sequence) -> Reuse:
        """Nothing."""
        return Reuse()

    def admit(self, seq: Sequence, reuse: Reuse, num_tokens: int) -> Grant | None:
        """Reserve a piece; ``None`` if all are held."""
        table = self.allocate(seq.seq_id, num_tokens)
        return None if table is None else Grant(table)

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """Reserve a piece, unless the sequence has one; ``None`` if all are held."""
        table = self._pieces.allocate(seq_id, num_tokens)
        return None if table is None else self._blocks(table)

    def set_aside(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keep a piece for a sequence that has none."""
        self._pieces.set_aside(seq_id, num_tokens)

    def commit(self, seq: Sequence) -> None:
        """Nobody may find the piece."""

    def swap_out(self, seq: Sequence) -> tuple[BlockCopy, ...] | None:
        """There is no host tier."""
        return None

    def coming_in(self, seq_id: SeqId) -> tuple[BlockCopy, ...]:
        """Nothing."""
        return ()

    def free(self, seq_id: SeqId) -> None:
        """Give the piece back."""
        self._pieces.free(seq_id)

    def check(self, running: Collection[SeqId], waiting: Collection[SeqId]) -> None:
        """See ``KVCacheManager``."""
        self._pieces.check(running, waiting)

    def _blocks(self, pieces: BlockTable) -> BlockTable:
        return tuple(block for piece in pieces for block in range(piece * self._piece, (piece + 1) * self._piece))
