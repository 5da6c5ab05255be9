"""The contract of a matrix product with fixed weights, one file per weight format.

A row's result must have the same bits whatever the other rows are and however many there are.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Linear(Protocol):
    """``x [num_rows, in_features] -> [num_rows, out_features]``, in the dtype of ``x``; any ``num_rows >= 1``."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply every row by the weights, and add the bias if there is one."""
