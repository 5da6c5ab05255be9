"""The KV cache as a scheduler sees it. One file per way to share the memory out."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from inflight.core.output import BlockCopy, BlockId
from inflight.core.request import SeqId
from inflight.core.sequence import Sequence

BlockTable = tuple[BlockId, ...]


class Reuse(NamedTuple):
    """KV that a sequence need not compute when it enters: of its first ``num_tokens`` tokens."""

    num_tokens: int = 0
    found: BlockTable = ()  # findable blocks, of the first of these tokens; the host tier has the others
    num_shared: int = 0  # of the blocks found, those that other sequences hold: they take nothing from the free ones


class Grant(NamedTuple):
    """The memory with which a sequence enters, and what must be copied into it before it runs."""

    table: BlockTable
    copies: tuple[BlockCopy, ...] = ()


class KVUsage(NamedTuple):
    """Counts of blocks at one instant; the last three only grow."""

    num_blocks: int
    num_free_blocks: int  # that no sequence holds, cached ones included
    num_cached_blocks: int = 0
    num_shared_blocks: int = 0
    num_repeated_entries: int = 0  # entries of all tables together, less the blocks that they hold
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
    num_evicted_blocks: int = 0
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0


class KVCacheManager(Protocol):
    """Block tables of the running sequences over ``num_blocks`` blocks of ``block_size`` tokens.

    Every grant is all or nothing.
    """

    block_size: int

    @property
    def can_share(self) -> bool:
        """Whether a sequence may find the blocks of another."""

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences can have."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""

    def usage(self) -> KVUsage:
        """All counts of this instant."""

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` tokens takes."""

    def num_held(self, seq_id: SeqId) -> int:
        """Blocks that a sequence holds."""

    def block_table(self, seq_id: SeqId) -> BlockTable:
        """The blocks that a sequence holds, in the order of its tokens."""

    def find(self, seq: Sequence) -> Reuse:
        """What a sequence without memory could reuse now; it leaves at least its last token to run."""

    def admit(self, seq: Sequence, reuse: Reuse, num_tokens: int) -> Grant | None:
        """Give a sequence what ``find`` has just found, and free blocks up to ``num_tokens`` tokens, as one grant.

        Returns ``None``, and changes nothing, if the blocks that are free do not suffice.
        """

    def allocate(self, seq_id: SeqId, num_tokens: int) -> BlockTable | None:
        """Grow the table of ``seq_id`` to cover ``num_tokens`` tokens and return it.

        Returns ``None``, and changes nothing, if the blocks that are free for this sequence do not suffice.
        """

    def set_aside(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keep free blocks for ``seq_id`` until it holds enough for ``num_tokens`` tokens, or is freed."""

    def commit(self, seq: Sequence) -> None:
        """A step of a sequence has ended well: others may find its full blocks, and what was copied in is here.

        Where its tokens are known already, its table holds the known blocks from now on, and its own are free.
        """

    def swap_out(self, seq: Sequence) -> tuple[BlockCopy, ...] | None:
        """Move a sequence's KV to the host tier and free its blocks; ``None``, and no change, if it has no room."""

    def coming_in(self, seq_id: SeqId) -> tuple[BlockCopy, ...]:
        """The copies of a sequence's grant, until ``commit``; a step that failed is run again with them."""

    def free(self, seq_id: SeqId) -> None:
        """Give back all blocks of a sequence, in both tiers; one that holds none is ignored."""

    def check(self, running: Collection[SeqId], waiting: Collection[SeqId]) -> None:
        """Raise ``InvariantViolation`` unless every block is accounted for.

        Only ``running`` sequences may hold blocks, and only they and ``waiting`` ones may have any in the host tier.
        """
