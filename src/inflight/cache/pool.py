"""The blocks of one KV memory: a free list and reference counts."""

from __future__ import annotations

from collections.abc import Iterable

from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockId


class BlockPool:
    """``num_blocks`` blocks, each free or held by as many block tables as its reference count says."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is still in the caches

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return len(self._free)

    def take(self, num_blocks: int) -> tuple[BlockId, ...]:
        """Hand out free blocks, each with one reference. Raises ``InvariantViolation`` if there are too few."""
        if num_blocks > len(self._free):
            raise InvariantViolation(f"{num_blocks} blocks taken, {len(self._free)} free")
        blocks = tuple(self._free.pop() for _ in range(num_blocks))
        for block in blocks:
            self._ref_counts[block] += 1
        return blocks

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Drop one reference of each block; a block without references is free."""
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] < 0:
                raise InvariantViolation(f"block {block} released more often than it was taken")
            if self._ref_counts[block] == 0:
                self._free.append(block)

    def check(self, tables: Iterable[tuple[BlockId, ...]]) -> None:
        """Raise ``InvariantViolation`` unless the counts are exactly those of ``tables`` and nothing is lost."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        if counts != self._ref_counts:
            raise InvariantViolation(f"reference counts {self._ref_counts} but the tables hold {counts}")
        if sorted(self._free) != [block for block, count in enumerate(counts) if count == 0]:
            raise InvariantViolation(f"free list {sorted(self._free)} but the tables hold {counts}")
