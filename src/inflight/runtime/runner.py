"""``ModelExecutor``: carries out a ``SchedulerOutput``: copy, forward, sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import torch

from inflight.core.errors import InvariantViolation, StepFailed
from inflight.core.output import (
    FailedRow,
    NewSequence,
    SampledRow,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    StepResult,
)
from inflight.core.request import SeqId, TokenId
from inflight.runtime.forward import ForwardPass, StepLogits
from inflight.runtime.models.base import ModelConfig
from inflight.runtime.rectangle import rows_of
from inflight.runtime.sampler import SamplerRow, UnusableLogits, sample


@dataclass(frozen=True, slots=True)
class _SequenceState:
    """What lives as long as the sequence does: how it samples, and its tokens as far as they were scheduled."""

    new: NewSequence
    token_ids: list[TokenId]


class ModelExecutor:
    """See ``Executor``.

    ``model_config`` holds the model's facts, ``num_threads`` is how many a forward pass uses, ``notes`` are lines for
    people about memory and speed.
    """

    def __init__(
        self, forward: ForwardPass, model_config: ModelConfig, device: torch.device, notes: tuple[str, ...] = ()
    ) -> None:
        self.capacity = forward.capacity
        self.num_threads = forward.num_threads
        self.model_config = model_config
        self.device = device
        self.notes = notes
        self._forward: ForwardPass | None = forward
        self._states: dict[SeqId, _SequenceState] = {}
        # Kernels leave the interpreter to other threads, and a step's buffers are the next one's.
        self._one_step = Lock()

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Run one step. Raises ``StepFailed`` for what the forward pass raises; the step may then be run again."""
        with self._one_step:
            return self._execute(output)

    def _execute(self, output: SchedulerOutput) -> StepResult:
        started_s = time.perf_counter()
        for seq_id in output.finished:
            self._states.pop(seq_id, None)
        for new in output.new:
            self._states[new.seq_id] = _SequenceState(new, list(new.prompt_token_ids))
        for row in output.scheduled:
            self._take_tokens(row)
        num_computed_tokens, copies_s = 0, 0.0
        tokens: list[SampledToken | UnusableLogits] = []
        try:
            if output.copies:
                copying_s = time.perf_counter()
                self._opened().copy_blocks(output.copies)
                copies_s = time.perf_counter() - copying_s
            if output.scheduled:
                logits = self._run(output)
                num_computed_tokens = logits.num_tokens
                tokens = sample(logits, list(self._sampler_rows(output)))
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            raise StepFailed(f"{type(error).__name__}: {error}") from error
        sampled, failed = _by_row(output, tokens)
        operations_s = tuple(self._forward.operations_s().items()) if self._forward and output.scheduled else ()
        duration_s = time.perf_counter() - started_s
        return StepResult(output.step, sampled, duration_s, failed, operations_s, num_computed_tokens, copies_s)

    def close(self) -> None:
        """Release the weights, the KV and every sequence; idempotent."""
        self._forward = None
        self._states.clear()

    def _take_tokens(self, row: ScheduledSequence) -> None:
        state = self._states.get(row.seq_id)
        if state is None or row.start > len(state.token_ids):
            raise InvariantViolation(f"{row.seq_id}: scheduled at {row.start}, but its earlier tokens never were")
        state.token_ids[row.start : row.start + len(row.token_ids)] = row.token_ids

    def _run(self, output: SchedulerOutput) -> StepLogits:
        """Compute all rows of the step; the logits of those that are real."""
        logits = self._opened().run(rows_of(output, self._pad_token_id))
        return logits.first(sum(row.num_logits for row in output.scheduled))

    def _opened(self) -> ForwardPass:
        if self._forward is None:
            raise StepFailed("the executor is closed")
        return self._forward

    def _pad_token_id(self, seq_id: SeqId) -> TokenId:
        """An end token, as is the custom; a sequence that has left has none."""
        state = self._states.get(seq_id)
        return state.new.eos_token_ids[0] if state and state.new.eos_token_ids else 0

    def _sampler_rows(self, output: SchedulerOutput) -> Iterator[SamplerRow]:
        for row in output.scheduled:
            state = self._states[row.seq_id]
            end = row.start + len(row.token_ids)
            for known in range(end - row.num_logits + 1, end + 1):
                all_known = known == len(state.token_ids)  # almost always: no copy then
                yield SamplerRow(state.new, state.token_ids if all_known else state.token_ids[:known])


def _by_row(
    output: SchedulerOutput, tokens: list[SampledToken | UnusableLogits]
) -> tuple[tuple[SampledRow, ...], tuple[FailedRow, ...]]:
    """Share the flat list of drawn tokens out to the sequences that asked for them."""
    sampled: list[SampledRow] = []
    failed: list[FailedRow] = []
    rest = iter(tokens)
    for row in output.scheduled:
        own = [next(rest) for _ in range(row.num_logits)]
        reason = next((token for token in own if isinstance(token, UnusableLogits)), None)
        if reason is not None:
            failed.append(FailedRow(row.seq_id, str(reason)))
        elif own:
            sampled.append(SampledRow(row.seq_id, tuple(token for token in own if isinstance(token, SampledToken))))
    return tuple(sampled), tuple(failed)
