"""Prefixes as a radix tree, as in SGLang (RadixAttention, arXiv:2312.07104), with whole blocks for letters.

The letters are compared token by token on the way. The first one of a sequence has its ``cache_salt`` before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inflight.cache.prefix import block_tokens
from inflight.core.errors import InvariantViolation
from inflight.core.output import BlockId
from inflight.core.sequence import Sequence

Letter = tuple[int | str, ...]


class _Node:
    """A run of letters without a branch, and the block that holds the KV of each."""

    __slots__ = ("blocks", "branches", "letters", "parent")

    def __init__(self, parent: _Node | None, letters: list[Letter], blocks: list[BlockId]) -> None:
        self.parent = parent
        self.letters = letters
        self.blocks = blocks
        self.branches: dict[Letter, _Node] = {}  # behind the run's end, by their first letter

    def split(self, length: int) -> _Node:
        """Cut the run after its first blocks; return the node of the others, which takes the branches."""
        rest = _Node(self, self.letters[length:], self.blocks[length:])
        rest.branches, self.branches = self.branches, {rest.letters[0]: rest}
        for branch in rest.branches.values():
            branch.parent = rest
        del self.letters[length:], self.blocks[length:]
        return rest


class RadixPrefixIndex:
    """See ``PrefixIndex``. Finding a prefix costs its length."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node(None, [], [])
        self._nodes: dict[BlockId, _Node] = {}  # of the blocks that are known

    def find(self, seq: Sequence, max_num_blocks: int) -> tuple[BlockId, ...]:
        """See ``PrefixIndex``."""
        found: list[BlockId] = []
        node, at = self._root, 0  # behind how many of the node's letters
        while len(found) < max_num_blocks:
            letter = self._letter(seq, len(found))
            if at == len(node.letters):
                if letter not in node.branches:
                    break
                node, at = node.branches[letter], 0
            elif node.letters[at] != letter:
                break
            found.append(node.blocks[at])
            at += 1
        return tuple(found)

    def publish(self, seq: Sequence, table: tuple[BlockId, ...], num_findable: int) -> tuple[BlockId, ...]:
        """See ``PrefixIndex``."""
        node, at = self._root, 0
        if num_findable:
            node = self._nodes[table[num_findable - 1]]
            at = node.blocks.index(table[num_findable - 1]) + 1
        published: list[BlockId] = []
        for index in range(num_findable, len(table)):
            node, at = self._go_on(node, at, self._letter(seq, index), table[index])
            published.append(node.blocks[at - 1])
        return tuple(published)

    def forget(self, block: BlockId) -> None:
        """See ``PrefixIndex``."""
        node = self._nodes.pop(block)
        if node.branches or node.blocks[-1] != block:
            raise InvariantViolation(f"block {block} is given up before those that follow on it")
        node.blocks.pop()
        letter = node.letters.pop()
        if not node.blocks and node.parent is not None:
            del node.parent.branches[letter]

    def check(self, findable: Iterable[BlockId]) -> None:
        """See ``PrefixIndex``."""
        blocks = [block for node in _below(self._root) for block in node.blocks]
        if not sorted(blocks) == sorted(self._nodes) == sorted(findable):
            raise InvariantViolation(f"blocks {sorted(blocks)} are known, findable are {sorted(findable)}")

    def _letter(self, seq: Sequence, index: int) -> Letter:
        tokens = block_tokens(seq, index, self._block_size)
        return tokens if index else (seq.request.cache_salt, *tokens)

    def _go_on(self, node: _Node, at: int, letter: Letter, block: BlockId) -> tuple[_Node, int]:
        """From behind a node's first ``at`` letters to behind the next one, whose block is ``block`` if it is new."""
        if at < len(node.letters):
            if node.letters[at] == letter:
                return node, at + 1
            rest = node.split(at)
            self._nodes.update(dict.fromkeys(rest.blocks, rest))
        elif letter in node.branches:
            return node.branches[letter], 1
        elif node is not self._root and not node.branches:  # a leaf grows
            node.letters.append(letter)
            node.blocks.append(block)
            self._nodes[block] = node
            return node, at + 1
        branch = node.branches[letter] = self._nodes[block] = _Node(node, [letter], [block])
        return branch, 1


def _below(node: _Node) -> Iterator[_Node]:
    yield node
    for branch in node.branches.values():
        yield from _below(branch)
