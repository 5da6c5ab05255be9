"""The KV cache as a scheduler sees it. One file per way to share the memory out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from inflight.core.output import BlockId
from inflight.core.request import SeqId

BlockTable = tuple[BlockId, ...]


class KVCacheManager(Protocol):
    """Block tables of the running sequences over ``num_blocks`` blocks of ``block_size`` tokens."""

    block_size: int

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences can have."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` tokens takes."""

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks that a sequence holds."""

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks that a sequence holds, in the order of its tokens."""

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """Grow the table of ``seq_id`` to cover ``num_tokens`` tokens and return it.

        Returns ``None``, and changes nothing, if the blocks that are free for this sequence do not suffice.
        """

    def set_aside(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keep free blocks for ``seq_id`` until it holds enough for ``num_tokens`` tokens, or is freed."""

    def free(self, seq_id: SeqId) -> None:
        """Give back all blocks of a sequence; one that holds none is ignored."""

    def check(self, live: Collection[SeqId]) -> None:
        """Raise ``InvariantViolation`` unless only ``live`` sequences hold blocks and every block is accounted for."""
