"""The contract of a forward pass: a model with its KV memory, ready to run steps. One file per backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from inflight.core.output import BlockCopy, ScheduledSequence
from inflight.engine.executor import KVCapacity


@dataclass(frozen=True, slots=True)
class StepLogits:
    """The logits of the R rows that want some, in the order of the scheduled sequences."""

    values: Tensor  # [R, vocab_size] float32; valid until the next step
    best: Sequence[int]  # [R]: the likeliest token, the first of equals; -1 where a logit is not finite
    num_tokens: int  # rows that the matrix products were fed

    @classmethod
    def of(cls, values: Tensor, num_tokens: int) -> StepLogits:
        """Find the likeliest tokens of ``values`` with torch."""
        if not len(values):
            return cls(values, [], num_tokens)
        best: list[int] = torch.where(values.isfinite().all(-1), values.argmax(-1), -1).tolist()
        return cls(values, best, num_tokens)

    def first(self, num_rows: int) -> StepLogits:
        """The first rows alone."""
        return replace(self, values=self.values[:num_rows], best=self.best[:num_rows])


class ForwardPass(Protocol):
    """Weights, KV memory in both tiers, and the arithmetic of one step.

    A row's logits have the same bits whatever the other rows are and however its sequence was cut into chunks.
    """

    capacity: KVCapacity
    num_threads: int

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks between the tiers, unchanged: those to the host first. It returns when they are there.

        Raises ``ValueError`` for a block that does not exist.
        """

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        """Run one step: store the KV of its tokens, return the logits that are wanted. It may be run again."""

    def operations_s(self) -> dict[str, float]:
        """Seconds of wall time of the last run, by operation, all layers together; empty where nobody measures."""
