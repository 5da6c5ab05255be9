"""KV in int8: ``x = q * scale`` with q in -127..127; the layout is that of ``csrc/kernels/kv_int8.h``."""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.runtime.kv.grouped import GroupFormat


def _encode(scaled: Tensor) -> Tensor:
    return scaled.nan_to_num(nan=0.0).round().to(torch.int8)


INT8 = GroupFormat("int8", bits=8, largest=127.0, encode=_encode, decode=Tensor.float)
