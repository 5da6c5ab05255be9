"""Prefixes by hash, as in vLLM: the digest of a block is that of its tokens and of the digest before it.

An alternative to the radix tree, to compare with: it decides the same.

The digests are keyed (BLAKE2, RFC 7693), so that nobody can compute prefixes that collide; and since tokens, salt and
preceding blocks are compared all the same, a collision only keeps a block from being known.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from inflight.cache.prefix import block_tokens
from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockId
from inflight.core.sequence import Sequence

DIGEST_BYTES = 16


class _Entry(NamedTuple):
    block: BlockId
    before: BlockId | str  # the first of a sequence has the salt before it
    tokens: tuple[int, ...]


class HashPrefixIndex:
    """See ``PrefixIndex``. One dictionary; finding a block costs a digest, a look and a comparison."""

    def __init__(self, block_size: int, key: bytes) -> None:
        self._block_size = block_size
        self._key = key
        self._entries: dict[bytes, _Entry] = {}
        self._digests: dict[BlockId, bytes] = {}  # of the blocks that are known
        self._num_next: Counter[BlockId] = Counter()  # known blocks that follow on a block

    def find(self, seq: Sequence, max_num_blocks: int) -> tuple[BlockId, ...]:
        """See ``PrefixIndex``."""
        found: list[BlockId] = []
        for index in range(max_num_blocks):
            entry = self._entries.get(self._digest(seq, index))
            before = found[-1] if found else seq.request.cache_salt
            if entry is None or not self._is_same(entry, before, block_tokens(seq, index, self._block_size)):
                break
            found.append(entry.block)
        return tuple(found)

    def publish(self, seq: Sequence, table: tuple[BlockId, ...], num_findable: int) -> tuple[BlockId, ...]:
        """See ``PrefixIndex``. A block whose digest belongs to other tokens cannot be known."""
        published: list[BlockId] = []
        before = table[num_findable - 1] if num_findable else seq.request.cache_salt
        for index in range(num_findable, len(table)):
            digest, tokens = self._digest(seq, index), block_tokens(seq, index, self._block_size)
            entry = self._entries.get(digest)
            if entry is None:
                entry = self._entries[digest] = _Entry(table[index], before, tokens)
                self._digests[entry.block] = digest
                if isinstance(before, BlockId):
                    self._num_next[before] += 1
            elif not self._is_same(entry, before, tokens):
                break
            before = entry.block
            published.append(before)
        return tuple(published)

    def forget(self, block: BlockId) -> None:
        """See ``PrefixIndex``."""
        if self._num_next.pop(block, 0):
            raise InvariantViolation(f"block {block} is given up before those that follow on it")
        entry = self._entries.pop(self._digests.pop(block))
        if isinstance(entry.before, BlockId):
            self._num_next[entry.before] -= 1

    def check(self, findable: Iterable[BlockId]) -> None:
        """See ``PrefixIndex``."""
        blocks = {entry.block for entry in self._entries.values()}
        if not blocks == self._digests.keys() == set(findable):
            raise InvariantViolation(f"blocks {sorted(blocks)} are known, findable are {sorted(findable)}")
        followed = Counter(entry.before for entry in self._entries.values() if isinstance(entry.before, BlockId))
        if followed != self._num_next or not followed.keys() <= blocks:
            raise InvariantViolation(f"{followed} follow on known blocks, counted were {self._num_next}")

    def _is_same(self, entry: _Entry, before: BlockId | str, tokens: tuple[int, ...]) -> bool:
        return entry.before == before and entry.tokens == tokens

    def _digest(self, seq: Sequence, index: int) -> bytes:
        """The digest of a sequence's ``index``-th block; computed once, and kept with the sequence."""
        digests = seq.block_digests
        while len(digests) <= index:
            before = digests[-1] if digests else seq.request.cache_salt.encode()
            tokens = array("q", block_tokens(seq, len(digests), self._block_size)).tobytes()
            digests.append(blake2b(tokens + before, digest_size=DIGEST_BYTES, key=self._key).digest())
        return digests[index]
