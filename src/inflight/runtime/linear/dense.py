"""float32 and bfloat16 weights.

On a CPU the product is oneDNN's, called by the name that torch.compile's own code uses. Measured with torch 2.13 on
one AVX-512 processor: in float32 (8 shapes; 1, 2 and 3 threads; also 2 threads held to AVX2 by environment variables)
and in bfloat16 (5 shapes; 2 threads; AVX-512), a row's bits depend neither on the number of rows, from two on, nor on
its place among them (the place: float32 only, and both in the tests). Packed weights are faster at 4 to 16 rows. The
product behind ``torch.nn.functional.linear`` in float32 (MKL) keeps no such promise: there, on 2 threads, 1,536 inputs
changed bits at 64 rows, and held to AVX2 all shapes did somewhere.
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
        self._onednn = _onednn_does(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if pack and self._onednn else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply every row by the weights, and add the bias if there is one."""
        num_rows = x.shape[0]
        if self._onednn:
            rows = x.expand(MIN_ROWS, -1) if num_rows < MIN_ROWS else x
            y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        else:
            y = F.linear(F.pad(x, (0, 0, 0, -num_rows % PORTABLE_ROWS)), self._weight, self._bias)
        return y[:num_rows]


def _onednn_does(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    # bfloat16 needs a processor with some support for it; torch has no public question for that.
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
