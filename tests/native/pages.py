"""What the pages of a KV cache hold, decoded with numpy; see ``csrc/kv.h`` and ``csrc/kernels/kv_*.h``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.native import kernels
from native.single import hadamard

PAGE, KV_GROUP = 16, 32
LARGEST = {"INT8": 127.0, "INT4": 7.5}  # of a number in units of its scale; the formats that have scales
BITS = {"FLOAT32": 32, "BFLOAT16": 16, "INT8": 8, "INT4": 4}


@dataclass(frozen=True)
class Side:
    """The keys or the values of some tokens; formats with scales hold groups of them in another basis."""

    numbers: NDArray[Any]  # [num_tokens, num_kv_heads, head_dim]: integers, or the floats themselves
    scales: NDArray[np.float32] | None  # [num_tokens, num_kv_heads, head_dim / 32]

    @property
    def turned(self) -> NDArray[np.float64]:
        """In the basis of the cache, ``[num_tokens, num_kv_heads, head_dim / 32, 32]``."""
        groups = self.numbers.reshape(*self.numbers.shape[:2], -1, KV_GROUP).astype(np.float64)
        return groups if self.scales is None else groups * self.scales[..., None].astype(np.float64)

    @property
    def plain(self) -> NDArray[np.float64]:
        """As they were given, but for rounding."""
        turned = self.turned
        return (turned if self.scales is None else turned @ hadamard()).reshape(self.numbers.shape)


def decode(
    kv_format: kernels.KVFormat, layer: NDArray[np.uint8], table: NDArray[np.int32], num_tokens: int, head_dim: int
) -> tuple[Side, Side]:
    """Keys and values of a sequence; ``layer`` is uint8 ``[num_blocks, num_kv_heads, block_size / 16, 2, side]``."""
    at = np.arange(num_tokens)
    pages = layer.shape[2]
    sides = layer[table[at // (pages * PAGE)], :, at // PAGE % pages]  # [num_tokens, num_kv_heads, 2, side]
    size = PAGE * head_dim * BITS[kv_format.name] // 8
    found = []
    for index in range(2):
        side = np.ascontiguousarray(sides[:, :, index])
        numbers = _numbers(kv_format.name, side[..., :size], head_dim, index == 0)
        each = np.arange(num_tokens)
        numbers = numbers[each, :, :, at % PAGE] if index == 0 else numbers[each, :, at % PAGE]
        scales = None
        if kv_format.name in LARGEST:
            words = np.ascontiguousarray(side[..., size:]).view(np.uint16).astype(np.uint32) << 16
            scales = words.view(np.float32).reshape(*side.shape[:2], -1, PAGE)[each, :, :, at % PAGE]
        found.append(Side(numbers, scales))
    return found[0], found[1]


def _numbers(name: str, side: NDArray[np.uint8], head_dim: int, keys: bool) -> NDArray[Any]:
    """Keys ``[..., head_dim, 16]``, values ``[..., 16, head_dim]``."""
    side = np.ascontiguousarray(side)
    shape = (*side.shape[:-1], head_dim, PAGE) if keys else (*side.shape[:-1], PAGE, head_dim)
    if name == "FLOAT32":
        return side.view(np.float32).reshape(shape)
    if name == "INT8":
        return side.view(np.int8).reshape(shape)
    if name == "BFLOAT16":
        words = side.view(np.uint32)
        low, high = (words << 16).view(np.float32), (words & 0xFFFF0000).view(np.float32)
    else:
        low, high = (side & 15) - 7.5, (side >> 4) - 7.5
    if keys:  # dimensions 2 * i and 2 * i + 1
        pairs = [half.reshape(*side.shape[:-1], head_dim // 2, PAGE) for half in (low, high)]
        return np.stack(pairs, -2).reshape(shape)
    pairs = [half.reshape(*side.shape[:-1], PAGE, head_dim // 32, 16) for half in (low, high)]
    return np.stack(pairs, -2).reshape(shape)
