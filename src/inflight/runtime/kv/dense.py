"""KV stored as plain numbers: float32, bfloat16 or float16."""

from __future__ import annotations

import torch
from torch import Tensor


class DenseKV:
    """One tensor per side, ``[num_layers, num_kv_heads, num_slots + 1, head_dim]``; see ``kv/base.py``.

    Memory is reserved, not touched: the system hands out pages when blocks are first written.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.bytes_per_block = block_size * num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize
        self.null_slot = num_blocks * block_size
        shape = (num_layers, num_kv_heads, self.null_slot + 1, head_dim)
        self._k = torch.empty(shape, dtype=dtype, device=device)
        self._v = torch.empty(shape, dtype=dtype, device=device)
        self._k[:, :, self.null_slot] = 0
        self._v[:, :, self.null_slot] = 0

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of a step's tokens."""
        self._k[layer].index_copy_(1, slots, k.transpose(0, 1).to(self._k.dtype))
        self._v[layer].index_copy_(1, slots, v.transpose(0, 1).to(self._v.dtype))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read the keys and values at ``slots``, in their order."""
        return self._k[layer].index_select(1, slots).float(), self._v[layer].index_select(1, slots).float()

    def block_parts(self, block: int) -> tuple[Tensor, ...]:
        """The slots of a block: keys, then values."""
        slots = slice(block * self.block_size, (block + 1) * self.block_size)
        return self._k[:, :, slots], self._v[:, :, slots]
