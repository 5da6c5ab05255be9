"""A hand-driven engine: says to a Collector what a scheduler would, at times chosen by the test."""

from __future__ import annotations

from inflight.core.errors import Rejected, StepFailed
from inflight.core.output import (
    BlockCopy,
    FinishReason,
    NewSequence,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    StepResult,
    TokenEvent,
)
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.metrics.collect import Collector

Row = tuple[SeqId, int, int]  # sequence, start, q_len


class Trace:
    def __init__(self, keep_prompts: bool = False) -> None:
        self.collector = Collector(keep_prompts)
        self._step = 0
        self._known: set[SeqId] = set()
        self._requests: dict[str, Request] = {}

    def add(
        self, request_id: str, at: float, num_prompt: int = 4, n: int = 1, rejected: Rejected | None = None
    ) -> None:
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(range(1, num_prompt + 1)),
            sampling=SamplingParams(n=n, max_tokens=None),
            arrival_s=at,
        )
        self._requests[request_id] = request
        self.collector.on_add(request, rejected, at)

    def abort(self, request_id: str, at: float) -> None:
        self.collector.on_abort(request_id, at)

    def schedule(
        self,
        at: float,
        rows: list[Row],
        preempted: tuple[SeqId, ...] = (),
        swapped_out: tuple[SeqId, ...] = (),
        copies: tuple[BlockCopy, ...] = (),
    ) -> SchedulerOutput:
        new = tuple(
            NewSequence(seq_id, self._requests[seq_id[0]].prompt_token_ids, self._requests[seq_id[0]].sampling, ())
            for seq_id, _, _ in rows
            if seq_id not in self._known
        )
        self._known.update(seq.seq_id for seq in new)
        scheduled = tuple(ScheduledSequence(seq_id, (7,) * q_len, start, (0,), 1) for seq_id, start, q_len in rows)
        output = SchedulerOutput("main", self._step, scheduled, new, (), preempted, swapped_out, copies)
        self._step += 1
        self.collector.on_schedule(output, at)
        return output

    def update(
        self,
        at: float,
        output: SchedulerOutput,
        gave: dict[SeqId, int],
        ended: dict[SeqId, FinishReason] | None = None,
        failed: str | None = None,
    ) -> None:
        ended = ended or {}
        events = tuple(
            TokenEvent(
                seq_id,
                (SampledToken(7),) * gave.get(seq_id, 0),
                ended.get(seq_id),
                None,
                "boom" if ended.get(seq_id) is FinishReason.ERROR else None,
            )
            for seq_id in {**gave, **ended}
        )
        copies_s = 0.25 * len(output.copies)
        result = StepFailed(failed) if failed else StepResult(output.step, (), 0.1 + copies_s, copies_s=copies_s)
        self.collector.on_update(output, result, {}, events, at)

    def step(
        self,
        start: float,
        end: float,
        rows: list[Row],
        gave: dict[SeqId, int],
        ended: dict[SeqId, FinishReason] | None = None,
        preempted: tuple[SeqId, ...] = (),
    ) -> None:
        self.update(end, self.schedule(start, rows, preempted), gave, ended)
