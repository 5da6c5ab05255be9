"""The blocks of one KV memory: empty, held by block tables, or keeping a prefix that nobody holds until it is needed.

A table is released from its end, so that of two blocks of one prefix the later one is always given up first: what is
left of a prefix can be found, to its last block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockId


class BlockPool:
    """``num_blocks`` blocks, each held by as many block tables as its reference count says.

    A findable block that no table holds is cached; the one that was released longest ago is evicted first, and
    ``forget`` is told.
    """

    def __init__(self, num_blocks: int, forget: Callable[[BlockId], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_shared = 0  # blocks that several tables hold
        self.num_evicted = 0  # ever
        self._forget = forget
        self._ref_counts = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is still in the caches
        self.findable: set[BlockId] = set()  # held or cached
        self._cached: dict[BlockId, None] = {}  # findable and not held, the one released longest ago first

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that no table holds and that keep a findable prefix."""
        return len(self._cached)

    def is_held(self, block: BlockId) -> bool:
        """Whether a table holds the block."""
        return self._ref_counts[block] > 0

    def take(self, num_blocks: int) -> tuple[BlockId, ...]:
        """Hand out blocks that nobody holds, each with one reference.

        Raises ``InvariantViolation`` if there are too few.
        """
        if num_blocks > self.num_free:
            raise InvariantViolation(f"{num_blocks} blocks taken, {self.num_free} free")
        blocks = tuple(self._empty.pop() if self._empty else self._evict() for _ in range(num_blocks))
        for block in blocks:
            self._ref_counts[block] += 1
        return blocks

    def share(self, blocks: Collection[BlockId]) -> None:
        """Add a reference to each of some findable blocks."""
        for block in blocks:
            if block not in self.findable:
                raise InvariantViolation(f"block {block} is shared and is no findable one")
            self._cached.pop(block, None)
            self._ref_counts[block] += 1
            self.num_shared += self._ref_counts[block] == 2

    def make_findable(self, block: BlockId) -> None:
        """Keep what a block holds, even when no table holds the block, until it is evicted."""
        self.findable.add(block)

    def release(self, table: tuple[BlockId, ...]) -> None:
        """Drop one reference of each block of a table, from its end."""
        for block in reversed(table):
            self._ref_counts[block] -= 1
            count = self._ref_counts[block]
            if count < 0:
                raise InvariantViolation(f"block {block} released more often than it was taken")
            self.num_shared -= count == 1
            if count == 0 and block in self.findable:
                self._cached[block] = None
            elif count == 0:
                self._empty.append(block)

    def check(self, tables: Collection[tuple[BlockId, ...]]) -> None:
        """Raise ``InvariantViolation`` unless the counts are exactly those of ``tables`` and nothing is lost."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        if counts != self._ref_counts:
            raise InvariantViolation(f"reference counts {self._ref_counts} but the tables hold {counts}")
        not_held = [block for block, count in enumerate(counts) if count == 0]
        if sorted([*self._empty, *self._cached]) != not_held:
            raise InvariantViolation(f"empty {self._empty} and cached {list(self._cached)}, not held {not_held}")
        if not self._cached.keys() <= self.findable or not self.findable.isdisjoint(self._empty):
            raise InvariantViolation(f"findable {sorted(self.findable)}, cached {list(self._cached)}")
        if self.num_shared != sum(count > 1 for count in counts):
            raise InvariantViolation(f"{self.num_shared} blocks said to be shared, but the tables hold {counts}")

    def _evict(self) -> BlockId:
        block = next(iter(self._cached))
        del self._cached[block]
        self.findable.remove(block)
        self.num_evicted += 1
        if self._forget is not None:
            self._forget(block)
        return block
