"""The prefix cache as the KV cache sees it: which blocks hold the KV of how a sequence begins. One file per index.

An index knows full blocks whose step is done. A block is found through all the tokens before it: its own tokens, and
the block before it, are compared one by one, and only a sequence of the same ``cache_salt`` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from inflight.core.output import BlockId
from inflight.core.sequence import Sequence


class PrefixIndex(Protocol):
    """Findable blocks, by the tokens that they hold and that come before them."""

    def find(self, seq: Sequence, max_num_blocks: int) -> tuple[BlockId, ...]:
        """The blocks of the longest known beginning of a sequence's tokens, in their order."""

    def publish(self, seq: Sequence, table: tuple[BlockId, ...], num_findable: int) -> tuple[BlockId, ...]:
        """Make full blocks findable: those of ``table`` behind its first ``num_findable``, which are already.

        Returns the findable blocks in their place, in their order: the sequence's own, or where the same tokens are
        known already, those that hold them. There are fewer than were given where one of them cannot be known.
        """

    def forget(self, block: BlockId) -> None:
        """A block is given up; the blocks that follow on it have been before.

        Raises ``InvariantViolation`` if one of them has not.
        """

    def check(self, findable: Iterable[BlockId]) -> None:
        """Raise ``InvariantViolation`` unless exactly these blocks are known."""


def block_tokens(seq: Sequence, index: int, block_size: int) -> tuple[int, ...]:
    """The tokens of a sequence's ``index``-th block."""
    return tuple(seq.token_ids[index * block_size : (index + 1) * block_size])
