"""The engine's bookkeeper: from what the scheduler was told and decided to samples and one record per request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight.core.errors import Reason, Rejected, StepFailed
from inflight.core.output import FinishReason, ScheduledSequence, SchedulerOutput, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SeqId
from inflight.metrics.delta import FirstToken, MetricsDelta, Outcome, RequestRecord
from inflight.metrics.ledger import Ledger, Slots


@dataclass(slots=True)
class _Sequence:
    """One choice that has not ended."""

    num_computed: int = 0  # tokens whose KV is stored, here or in the host tier, once the step in flight has ended
    num_tokens: int = 0  # given to the caller
    first_token_s: float | None = None
    last_token_s: float | None = None
    preempted: bool = False  # since its last token


@dataclass(slots=True)
class _Live:
    """One request of which a choice has not ended."""

    request: Request
    num_open: int
    first_step_s: float | None = None
    first_token_s: float | None = None
    first_computed_s: float | None = None  # as first_token_s, where no answer is withheld
    last_computed_s: float | None = None
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_tokens_lost: int = 0
    num_cached_tokens: int = 0  # of the first choice
    max_itl_s: float | None = None
    tpot_s: list[float] = field(default_factory=list)
    reasons: set[FinishReason] = field(default_factory=set)
    error: str | None = None


@dataclass(slots=True)
class _Open:
    """The delta that is being written."""

    batch_rows: list[int] = field(default_factory=list)
    batch_tokens: list[int] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    itl_preempted_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_swapped_out: int = 0
    num_tokens_lost: int = 0
    num_blocks_out: int = 0
    num_blocks_in: int = 0
    copies_s: float = 0.0
    rejected: list[Reason] = field(default_factory=list)
    ended: list[RequestRecord] = field(default_factory=list)

    def freeze(self, slots: Slots) -> MetricsDelta:
        return MetricsDelta(
            batch_rows=tuple(self.batch_rows),
            batch_tokens=tuple(self.batch_tokens),
            first_tokens=tuple(self.first_tokens),
            itl_s=tuple(self.itl_s),
            itl_preempted_s=tuple(self.itl_preempted_s),
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_preemptions=self.num_preemptions,
            num_swapped_out=self.num_swapped_out,
            num_tokens_lost=self.num_tokens_lost,
            num_blocks_out=self.num_blocks_out,
            num_blocks_in=self.num_blocks_in,
            copies_s=self.copies_s,
            rejected=tuple(self.rejected),
            ended=tuple(self.ended),
            slots=slots,
        )


class Collector:
    """An ``Observer``. With ``keep_prompts`` the records hold the prompts' token ids; otherwise no content is kept.

    ``num_seats`` is how many sequences the scheduler can run at once; with 0, not known, no seats are counted.
    """

    def __init__(self, keep_prompts: bool = False, num_seats: int = 0) -> None:
        self._keep_prompts = keep_prompts
        self._ledger = Ledger(num_seats)
        self._drained = Slots()  # of the ledger, at the last ``drain``
        self._live: dict[RequestId, _Live] = {}
        self._sequences: dict[SeqId, _Sequence] = {}
        self._open = _Open()

    def drain(self) -> MetricsDelta:
        """What was seen since the last call."""
        delta = self._open.freeze(self._ledger.slots - self._drained)
        self._open, self._drained = _Open(), self._ledger.slots
        return delta

    def on_add(self, request: Request, rejected: Rejected | None, now_s: float) -> None:
        """See ``Observer``."""
        if rejected is not None:
            self._open.rejected.append(rejected.reason)
            return
        self._live[request.request_id] = _Live(request, request.sampling.n)
        for choice in range(request.sampling.n):
            self._sequences[(request.request_id, choice)] = _Sequence()

    def on_abort(self, request_id: RequestId, now_s: float) -> None:
        """See ``Observer``. A request that has ended, or is unknown, is no abort."""
        live = self._live.get(request_id)
        if live is not None:
            live.reasons.add(FinishReason.ABORT)
            self._close(live, now_s)

    def on_flush(self, now_s: float) -> None:
        """See ``Observer``. Nothing is counted."""

    def on_schedule(self, output: SchedulerOutput, now_s: float) -> None:
        """See ``Observer``."""
        self._open.batch_rows.append(len(output.scheduled))
        self._open.batch_tokens.append(output.num_tokens)
        for seq_id in output.preempted:
            self._preempt(seq_id, swapped_out=seq_id in output.swapped_out)
        new = {one.seq_id for one in output.new}
        for row in output.scheduled:
            live, seq = self._live.get(row.seq_id[0]), self._sequences.get(row.seq_id)
            if live is None or seq is None:
                continue
            seq.num_computed = row.start + len(row.token_ids)
            if row.seq_id in new:
                self._begin(live, row, now_s)

    def on_update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        events: tuple[TokenEvent, ...],
        now_s: float,
    ) -> None:
        """See ``Observer``."""
        self._ledger.on_update(output, isinstance(result, StepFailed), events)
        if isinstance(result, StepFailed):
            for row in output.scheduled:
                if (seq := self._sequences.get(row.seq_id)) is not None:
                    seq.num_computed = row.start
            for seq_id in output.swapped_out:
                self._lose_tokens(seq_id)  # nobody knows what became of its KV
        else:
            num_out = sum(copy.to_host for copy in output.copies)
            self._open.num_blocks_out += num_out
            self._open.num_blocks_in += len(output.copies) - num_out
            self._open.copies_s += result.copies_s
            for sampled in result.sampled:
                if (live := self._live.get(sampled.seq_id[0])) is not None:
                    live.last_computed_s = now_s
                    if live.first_computed_s is None:
                        live.first_computed_s = now_s
        for event in events:
            live = self._live.get(event.seq_id[0])
            seq = self._sequences.get(event.seq_id)
            if live is None or seq is None:
                continue  # its request was aborted while the step ran
            if event.tokens:
                self._take_tokens(live, seq, len(event.tokens), now_s)
            if event.finish_reason is not None:
                self._end_choice(live, event, now_s)

    def _begin(self, live: _Live, row: ScheduledSequence, now_s: float) -> None:
        if live.first_step_s is None:
            live.first_step_s = now_s
        if row.seq_id[1] == 0:
            live.num_cached_tokens = row.start

    def _preempt(self, seq_id: SeqId, swapped_out: bool) -> None:
        live, seq = self._live.get(seq_id[0]), self._sequences.get(seq_id)
        if live is None or seq is None:
            return
        live.num_preemptions += 1
        self._open.num_preemptions += 1
        self._open.num_swapped_out += swapped_out
        seq.preempted = True
        if not swapped_out:
            self._lose_tokens(seq_id)

    def _lose_tokens(self, seq_id: SeqId) -> None:
        live, seq = self._live.get(seq_id[0]), self._sequences.get(seq_id)
        if live is not None and seq is not None:
            live.num_tokens_lost += seq.num_computed
            self._open.num_tokens_lost += seq.num_computed
            seq.num_computed = 0

    def _take_tokens(self, live: _Live, seq: _Sequence, num_tokens: int, now_s: float) -> None:
        if live.first_token_s is None:
            live.first_token_s = now_s
            first_step_s = now_s if live.first_step_s is None else live.first_step_s
            queue_s = first_step_s - live.request.arrival_s
            first = FirstToken(live.request.request_id, queue_s, now_s - first_step_s, now_s)
            self._open.first_tokens.append(first)
            self._open.num_prompt_tokens += len(live.request.prompt_token_ids)
        if seq.last_token_s is None:
            seq.first_token_s = now_s
            seq.preempted = False  # before the first token there is no gap
            gaps_s = [0.0] * (num_tokens - 1)
        else:
            gaps_s = [(now_s - seq.last_token_s) / num_tokens] * num_tokens
        samples = self._open.itl_preempted_s if seq.preempted else self._open.itl_s
        samples.extend(gaps_s)
        if gaps_s:
            live.max_itl_s = max(gaps_s[0], live.max_itl_s or 0.0)
        seq.preempted = False
        seq.last_token_s = now_s
        seq.num_tokens += num_tokens
        live.num_output_tokens += num_tokens
        self._open.num_output_tokens += num_tokens

    def _end_choice(self, live: _Live, event: TokenEvent, now_s: float) -> None:
        seq = self._sequences.pop(event.seq_id)
        reason = event.finish_reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and seq.num_tokens > 1:
            live.tpot_s.append(((seq.last_token_s or 0.0) - (seq.first_token_s or 0.0)) / (seq.num_tokens - 1))
        if reason is not None:
            live.reasons.add(reason)
        live.error = live.error or event.error
        live.num_open -= 1
        if live.num_open == 0:
            self._close(live, now_s)

    def _close(self, live: _Live, now_s: float) -> None:
        request = live.request
        del self._live[request.request_id]
        for choice in range(request.sampling.n):
            self._sequences.pop((request.request_id, choice), None)
        arrival_s = request.arrival_s
        self._open.ended.append(
            RequestRecord(
                request_id=request.request_id,
                outcome=_outcome(live.reasons),
                num_choices=request.sampling.n,
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=live.num_output_tokens,
                num_preemptions=live.num_preemptions,
                num_tokens_lost=live.num_tokens_lost,
                num_cached_tokens=live.num_cached_tokens,
                queue_s=None if live.first_step_s is None else live.first_step_s - arrival_s,
                ttft_s=None if live.first_token_s is None else live.first_token_s - arrival_s,
                e2e_s=now_s - arrival_s,
                computed_ttft_s=None if live.first_computed_s is None else live.first_computed_s - arrival_s,
                computed_e2e_s=None if live.last_computed_s is None else live.last_computed_s - arrival_s,
                tpot_s=tuple(live.tpot_s),
                max_itl_s=live.max_itl_s,
                error=live.error,
                prompt_token_ids=request.prompt_token_ids if self._keep_prompts else (),
            )
        )


def _outcome(reasons: set[FinishReason]) -> Outcome:
    # The scheduler's own rule: one aborted choice makes an aborted request, else one failed choice a failed one.
    order = (
        (FinishReason.ABORT, Outcome.ABORTED),
        (FinishReason.ERROR, Outcome.FAILED),
        (FinishReason.LENGTH, Outcome.LENGTH),
    )
    return next((outcome for reason, outcome in order if reason in reasons), Outcome.STOP)
