"""``SchedulerOutput`` -> tensors: T tokens of S sequences, one after the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inflight.core.output import ScheduledSequence


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One scheduled sequence: ``q_len`` tokens from position ``start``."""

    start: int
    q_len: int
    slots: NDArray[np.int64]  # [start + q_len]: where the tokens known to the cache lie


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step; T tokens, R of which want logits."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]: where the step's keys and values go
    logit_rows: Tensor  # [R]: rows of [0, T), in the order of the scheduled sequences
    rows: tuple[BatchRow, ...]


def make_batch(scheduled: Sequence[ScheduledSequence], block_size: int, device: torch.device) -> Batch:
    """Lay a step's tokens out in a row. Raises ``ValueError`` where a block table is too short."""
    rows: list[BatchRow] = []
    positions: list[NDArray[np.int64]] = []
    logit_rows: list[int] = []
    num_tokens = 0
    for sequence in scheduled:
        q_len = len(sequence.token_ids)
        end = sequence.start + q_len
        num_blocks = -(-end // block_size)
        if len(sequence.block_table) < num_blocks:
            raise ValueError(f"{sequence.seq_id}: {len(sequence.block_table)} blocks do not hold {end} tokens")
        first_slots = np.array(sequence.block_table[:num_blocks], dtype=np.int64) * block_size
        slots = (first_slots[:, None] + np.arange(block_size)).reshape(-1)[:end]
        rows.append(BatchRow(sequence.start, q_len, slots))
        positions.append(np.arange(sequence.start, end))
        num_tokens += q_len
        logit_rows += range(num_tokens - sequence.num_logits, num_tokens)
    token_ids = [token_id for sequence in scheduled for token_id in sequence.token_ids]
    return Batch(
        torch.tensor(token_ids, dtype=torch.long, device=device),
        torch.from_numpy(np.concatenate(positions)).to(device),
        torch.from_numpy(np.concatenate([row.slots[row.start :] for row in rows])).to(device),
        torch.tensor(logit_rows, dtype=torch.long, device=device),
        tuple(rows),
    )
