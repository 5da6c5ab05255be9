"""KV in 4 bits: ``x = (n - 7.5) * scale`` with n in 0..15; why so is told in ``csrc/kernels/kv_int4.h``.

A byte holds the numbers i (low) and 16 + i of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.runtime.kv.grouped import GroupFormat

LARGEST = 7.5


def _encode(scaled: Tensor) -> Tensor:
    low, high = (scaled + LARGEST).nan_to_num(nan=0.0).round().to(torch.uint8).chunk(2, -1)
    return low | high << 4


def _decode(numbers: Tensor) -> Tensor:
    return torch.cat((numbers & 15, numbers >> 4), -1).float() - LARGEST


INT4 = GroupFormat("int4", bits=4, largest=LARGEST, encode=_encode, decode=_decode)
