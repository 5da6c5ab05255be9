"""The contract of attention over paged KV, one file per backend.

A backend plans once per step and runs once per layer. A row's result must have the same bits whatever the other rows
of the batch are and however its sequence is cut into chunks.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor

from inflight.runtime.kv.base import KVStore


class AttentionSequence(Protocol):
    """What a backend needs to know of one row of a step."""

    @property
    def start(self) -> int:
        """Position of the row's first query token."""

    @property
    def q_len(self) -> int:
        """Query tokens of the row; the rows follow each other in the batch, in their order."""

    @property
    def slots(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the tokens ``[0, start + q_len)`` are stored."""


class AttentionPlan(Protocol):
    """A step's plan, made by one backend and understood by it alone."""

    def run(self, layer: int, q: Tensor, kv: KVStore) -> Tensor:
        """``q [num_tokens, num_heads, head_dim]`` -> the same shape and dtype.

        Query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``. The token at position ``p`` sees the
        positions ``[0, p]``, its own included: KV of the step's tokens has been written before.
        """
