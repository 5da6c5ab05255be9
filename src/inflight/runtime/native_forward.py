"""The forward pass in native kernels: one call a step, quantised weights, paged KV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.core.output import BlockCopy, ScheduledSequence
from inflight.engine.executor import KVCapacity
from inflight.native import kernels
from inflight.runtime.forward import StepLogits
from inflight.runtime.kv.host_tier import HostBlocks


class NativeForward:
    """See ``ForwardPass``. ``logits`` and ``best`` are buffers that the program fills for rows that want logits."""

    def __init__(
        self,
        program: kernels.ForwardPass,
        logits: kernels.Buffer,
        best: kernels.Buffer,
        host: HostBlocks,
        capacity: KVCapacity,
        num_threads: int,
    ) -> None:
        self.capacity = capacity
        self.num_threads = num_threads
        self._program = program
        self._logits = logits
        self._best = best
        self._host = host

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See ``ForwardPass``."""
        self._host.copy(copies)

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        """Run one step; see ``ForwardPass``. Raises ``ValueError`` for a token or a block that does not exist."""
        block_size = self.capacity.block_size
        tables: list[Sequence[int]] = []
        for row in scheduled:
            num_blocks = -(-(row.start + len(row.token_ids)) // block_size)
            if len(row.block_table) < num_blocks:
                raise ValueError(f"{row.seq_id}: {len(row.block_table)} blocks do not hold {num_blocks * block_size}")
            tables.append(row.block_table[:num_blocks])
        num_logits = [row.num_logits for row in scheduled]
        token_ids = _ints(chain.from_iterable(row.token_ids for row in scheduled))
        self._program.run(
            token_ids,
            _ints(row.start for row in scheduled),
            _ints(len(row.token_ids) for row in scheduled),
            _ints(num_logits),
            _ints(chain.from_iterable(tables)),
        )
        total = sum(num_logits)
        values = torch.from_numpy(self._logits.rows(total).view(np.float32))
        return StepLogits(values, self._best.rows(total).view(np.int32)[:, 0].tolist(), len(token_ids))

    def operations_s(self) -> dict[str, float]:
        """Seconds of the last run by operation, waiting for the slowest thread included."""
        return self._program.seconds()


def _ints(values: Iterable[int]) -> NDArray[np.int32]:
    try:
        return np.fromiter(values, dtype=np.int32)
    except OverflowError as error:
        raise ValueError(f"a token, a position or a block is out of range: {error}") from None
