"""The forward pass in torch: on any device, with weights and KV as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inflight.core.output import BlockCopy, ScheduledSequence
from inflight.engine.executor import KVCapacity
from inflight.runtime.attention.reference import ReferencePlan
from inflight.runtime.batch import make_batch
from inflight.runtime.forward import StepLogits
from inflight.runtime.kv.base import KVStore
from inflight.runtime.kv.host_tier import HostBlocks
from inflight.runtime.models.base import Model


class TorchForward:
    """See ``ForwardPass``."""

    def __init__(self, model: Model, num_heads: int, kv: KVStore, host: HostBlocks, device: torch.device) -> None:
        self.capacity = KVCapacity(kv.num_blocks, kv.block_size, kv.bytes_per_block, host.num_blocks)
        self.num_threads = torch.get_num_threads()
        self._model = model
        self._num_heads = num_heads
        self._kv = kv
        self._host = host
        self._device = device

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See ``ForwardPass``."""
        self._host.copy(copies)

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        """Run one step; see ``ForwardPass``. Raises what torch raises."""
        with torch.inference_mode():
            batch = make_batch(scheduled, self._kv.block_size, self._device)
            plan = ReferencePlan(batch.rows, self._num_heads, self._kv, self._device)
            return StepLogits.of(self._model.forward(batch, plan, self._kv), len(batch.token_ids))

    def operations_s(self) -> dict[str, float]:
        """Nobody measures here."""
        return {}
