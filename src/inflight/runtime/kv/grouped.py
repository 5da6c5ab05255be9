"""KV stored as small integers: groups of 32 neighbouring numbers of a token and head, each with a bfloat16 scale.

The numbers are those of the native kernels, exactly: ``csrc/kernels/kv_scale.h`` says how a group is turned and scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
SMALLEST = 2.0**-100  # a group of smaller magnitudes is stored as zeros


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """How the numbers of a group, divided by its scale, become bytes, and how bytes become such numbers again."""

    name: str
    bits: int
    largest: float  # the scale is the largest magnitude of the group / largest
    encode: Callable[[Tensor], Tensor]  # float32 [..., 32], NaN where the scale is -> [..., 32 * bits / 8]
    decode: Callable[[Tensor], Tensor]  # and back


class GroupedKV:
    """For each side numbers and scales, ``[num_layers, num_kv_heads, num_slots + 1, n]``; see ``kv/base.py``.

    Raises ``ValueError`` for heads that are not whole groups. Memory is reserved, not touched: the system hands out
    pages when blocks are first written.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        format: GroupFormat,
        device: torch.device,
    ) -> None:
        if head_dim % GROUP != 0:
            raise ValueError(
                f"kv_cache_dtype {format.name} stores groups of {GROUP} numbers: head_dim must be a multiple of "
                f"{GROUP}, not {head_dim}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.null_slot = num_blocks * block_size
        self._format = format
        shape = (num_layers, num_kv_heads, self.null_slot + 1)
        numbers, scales = head_dim * format.bits // 8, head_dim // GROUP
        self.bytes_per_block = block_size * num_layers * 2 * num_kv_heads * (numbers + scales * torch.bfloat16.itemsize)
        dtype = format.encode(torch.zeros(GROUP)).dtype
        self._sides = [
            (
                torch.empty((*shape, numbers), dtype=dtype, device=device),
                torch.empty((*shape, scales), dtype=torch.bfloat16, device=device),
            )
            for _ in range(2)
        ]
        for side in self._sides:
            for part in side:
                part[:, :, self.null_slot] = 0

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of a step's tokens."""
        for side, x in zip(self._sides, (k, v), strict=True):
            x = x.transpose(0, 1).float()
            scaled, scale = scale_groups(x.reshape(*x.shape[:2], -1, GROUP), self._format.largest)
            side[0][layer].index_copy_(1, slots, self._format.encode(scaled).flatten(-2))
            side[1][layer].index_copy_(1, slots, scale.squeeze(-1))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read the keys and values at ``slots``, in their order."""
        k, v = (self._read(*(part[layer].index_select(1, slots) for part in side)) for side in self._sides)
        return k, v

    def block_parts(self, block: int) -> tuple[Tensor, ...]:
        """The slots of a block: numbers and scales of the keys, then of the values."""
        slots = slice(block * self.block_size, (block + 1) * self.block_size)
        return tuple(part[:, :, slots] for side in self._sides for part in side)

    def _read(self, numbers: Tensor, scales: Tensor) -> Tensor:
        groups = self._format.decode(numbers.view(*scales.shape, -1))
        return hadamard(groups * scales.float().unsqueeze(-1)).flatten(-2)


def scale_groups(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Turn groups ``[..., 32]`` and divide them by their scales: the quotients, and the scales ``[..., 1]``."""
    turned = hadamard(x * (1 / GROUP))
    top = turned.abs().amax(-1, keepdim=True)
    bits = torch.where(top < SMALLEST, 0.0, top / largest).view(torch.int32)
    scale = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)  # upwards to a bfloat16
    scale = torch.where(turned.isfinite().all(-1, keepdim=True), scale, math.nan)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return turned * inverse, scale.bfloat16()


def hadamard(x: Tensor) -> Tensor:
    """Groups ``[..., 32]`` times the matrix of 1 and -1 that Sylvester's rule makes; twice, it gives ``32 * x``."""
    for stride in (16, 8, 4, 2, 1):
        left, right = x.reshape(*x.shape[:-1], -1, 2, stride).unbind(-2)
        x = torch.stack((left + right, left - right), -2).flatten(-3)
    return x
