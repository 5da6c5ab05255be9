"""float32, bfloat16 and float16 weights.

On a CPU the product is oneDNN's, called by the name that torch.compile's own code uses. Measured with torch 2.13 on
one AVX-512 processor (7 or 8 shapes; 1, 2 and 3 threads; also held to AVX2 by environment variables): a row's bits
depend neither on the number of rows, from two on, nor on its place among them. Packed weights are faster at 4 to 16
rows. The product behind ``torch.nn.functional.linear`` in float32 (MKL) keeps no such promise: there, on 2 threads,
1,536 inputs changed bits at 64 rows, and held to AVX2 all shapes did somewhere.

A processor without instructions for a 16-bit format computes in float32 from weights that are converted at each use.
For float16 held to AVX2 (1 thread, 576 x 1536) that took 1.7 ms for 16 rows and 5 ms for 128, where torch's own product
took 3 and 25.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 2  # a single row takes another path inside the library, with other bits
PORTABLE_ROWS = 16  # without oneDNN: fewer changes of bits with the row count, but no promise


class DenseLinear:
    """Weights ``[out_features, in_features]`` as plain numbers.

    ``pack=False`` keeps the caller's tensor instead of a packed copy, for weights that are used elsewhere too.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: bool = True) -> None:
        self._bias = bias
        self._onednn = _has_onednn(weight.device)
        self._emulated = is_emulated(weight.dtype, weight.device)
        pack = pack and self._onednn and not self._emulated
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if pack else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply every row by the weights, and add the bias if there is one."""
        num_rows = x.shape[0]
        if not self._onednn:
            return F.linear(F.pad(x, (0, 0, 0, -num_rows % PORTABLE_ROWS)), self._weight, self._bias)[:num_rows]
        rows, weight, bias = x.expand(MIN_ROWS, -1) if num_rows < MIN_ROWS else x, self._weight, self._bias
        if self._emulated:
            rows, weight, bias = rows.float(), weight.float(), None if bias is None else bias.float()
        y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return y[:num_rows].to(x.dtype)


def is_emulated(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of this dtype are computed in float32: right, but slower than float32 itself."""
    if not _has_onednn(device):
        return False
    # torch has no public question for what the processor supports.
    if dtype == torch.bfloat16:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported()


def _has_onednn(device: torch.device) -> bool:
    return device.type == "cpu" and bool(torch._C._has_mkldnn)
