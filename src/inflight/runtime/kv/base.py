"""The contract of paged KV storage: where the keys and values of every layer lie, addressed by slot.

A *slot* holds one token: ``slot = block * block_size + offset``. One slot more than the blocks hold, ``null_slot``,
is all zeros and never written; padding reads it, so that no stale number (a NaN least of all) enters a product.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class KVStore(Protocol):
    """Keys and values of ``num_layers`` layers."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    num_kv_heads: int
    head_dim: int
    null_slot: int

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v``, both ``[num_tokens, num_kv_heads, head_dim]``, at ``slots`` ``[num_tokens]``."""

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read ``slots`` ``[n]``: keys and values as float32 ``[num_kv_heads, n, head_dim]``, contiguous."""
