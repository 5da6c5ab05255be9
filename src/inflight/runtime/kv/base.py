"""The contract of paged KV storage: where the keys and values of every layer lie, addressed by slot.

A *slot* holds one token: ``slot = block * block_size + offset``. One slot more than the blocks hold, ``null_slot``,
is all zeros and never written; padding reads it, so that no stale number (a NaN least of all) enters a product.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class BlockStore(Protocol):
    """Memory whose blocks can be copied as they are."""

    num_blocks: int
    bytes_per_block: int

    def block_parts(self, block: int) -> tuple[Tensor, ...]:
        """All that a block holds, ``bytes_per_block`` bytes in the same order for every block.

        They are views into the memory, so that what is written to them is stored; their last dimension is contiguous.
        """


class KVStore(BlockStore, Protocol):
    """Keys and values of ``num_layers`` layers."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    null_slot: int

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v``, both ``[num_tokens, num_kv_heads, head_dim]``, at ``slots`` ``[num_tokens]``."""

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read ``slots`` ``[n]``: keys and values as float32 ``[num_kv_heads, n, head_dim]``, contiguous."""
