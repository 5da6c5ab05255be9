"""Continuous batching (Orca, OSDI 2022): who runs is decided again before every forward pass.

One pass over the one order. Every running row gets its token or its next chunk; if memory refuses, rows at the tail
of the order are preempted until it fits. A waiting row may enter while the door is open; the first refusal closes
the door, never the loop: the rows behind it still run.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from inflight.cache.manager import BlockTable, KVCacheManager
from inflight.core.budget import Budget
from inflight.core.errors import InvariantViolation, Reason, Rejected, StepFailed
from inflight.core.lifecycle import Status, Transition
from inflight.core.output import (
    FinishReason,
    Idle,
    LaneId,
    NewSequence,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    SchedulerStats,
    StepResult,
    Stop,
    TokenEvent,
)
from inflight.core.queue import WaitingQueue, by_order, order_key
from inflight.core.request import Request, RequestId, SeqId, TokenId
from inflight.core.sequence import Sequence
from inflight.schedulers.admission import Promises
from inflight.schedulers.book import Book
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.preemption import victim_index

LANE: LaneId = "main"


class ContinuousScheduler:
    """One lane, one KV cache, one order. Raises ``ValueError`` if one sequence alone could outgrow the cache."""

    lanes: tuple[LaneId, ...] = (LANE,)

    def __init__(self, config: ContinuousConfig, num_blocks: int, block_size: int) -> None:
        if config.max_model_len is None or config.max_num_batched_tokens is None:
            raise ValueError("max_model_len and max_num_batched_tokens must be decided before a scheduler is made")
        if config.max_model_len > num_blocks * block_size:
            raise ValueError(
                f"max_model_len is {config.max_model_len} tokens, but the KV cache holds {num_blocks * block_size} "
                f"({num_blocks} blocks of {block_size})"
            )
        self.config = config
        self._max_model_len = config.max_model_len
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._kv = KVCacheManager(num_blocks, block_size)
        self._promises = Promises(self._kv, config.max_preemptions)
        self._book = Book()
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in the one order
        self._in_flight: SchedulerOutput | None = None
        self._num_steps = 0
        self._num_sequences = 0

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: Request, now_s: float) -> None:
        """Queue the choices of a request. Raises ``Rejected`` if it can never run, or if the queue is full."""
        self._book.num_received += 1
        try:
            max_num_tokens = self._max_num_tokens(request)
        except Rejected:
            self._book.num_rejected += 1
            raise
        choices = []
        for choice in range(request.sampling.n):
            key = order_key(
                self.config.scheduling_policy,
                request.priority,
                self.config.priority_ageing_s,
                now_s,
                self._num_sequences,
            )
            self._num_sequences += 1
            choices.append(Sequence(request, choice, key, max_num_tokens))
        self._book.open(request.request_id, choices)
        for seq in choices:
            self._waiting.push(seq)

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """End a request in any status; unknown ids are ignored. A row in flight leaves in ``update``."""
        in_flight = {row.seq_id for row in self._in_flight.scheduled} if self._in_flight else set()
        for seq in self._book.live(request_id):
            if seq.seq_id in in_flight:
                seq.aborted = True
            else:
                self._end(seq, Status.ABORTED, "abort")

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, lane: LaneId, now_s: float) -> SchedulerOutput | Idle:
        """Decide the next step, with at least one row, or say that nothing can run."""
        if self._in_flight is not None:
            raise InvariantViolation(f"step {self._in_flight.step} is still in flight")
        step = self._num_steps
        suspect = next((seq for seq in self._running if seq.retry_len), None)
        preempted: list[SeqId] = []
        rows = [self._retry_row(suspect)] if suspect else self._fill_step(preempted)
        if not rows:
            return Idle()
        self._num_steps += 1
        self._in_flight = SchedulerOutput(
            lane=lane,
            step=step,
            scheduled=tuple(rows),
            new=self._introduce(rows),
            finished=self._book.take_ended_in_executor(),
            preempted=tuple(preempted),
        )
        return self._in_flight

    def update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        now_s: float,
    ) -> tuple[TokenEvent, ...]:
        """Advance every row by what it ran; rows that ended free their blocks before this returns."""
        if output is not self._in_flight and output != self._in_flight:
            raise InvariantViolation(f"step {output.step} is not the one in flight")
        self._in_flight = None
        if isinstance(result, StepFailed):
            return self._update_failed(output, result)
        sampled = dict(result.sampled)
        failed = dict(result.failed)
        events: list[TokenEvent] = []
        for row in output.scheduled:
            seq = self._book.sequences[row.seq_id]
            seq.retry_len = 0
            if seq.aborted:
                self._end(seq, Status.ABORTED, "abort")
            elif row.seq_id in failed:
                events.append(self._fail(seq, failed[row.seq_id]))
            elif row.num_logits and row.seq_id not in sampled:
                events.append(self._fail(seq, "the executor returned no token"))
            else:
                seq.num_computed = row.start + len(row.token_ids)
                if row.num_logits:
                    events.append(self._take_tokens(seq, sampled[row.seq_id], stops.get(row.seq_id)))
        return tuple(events)

    # -- what others may ask -------------------------------------------------------------------------------------

    def transitions(self) -> tuple[Transition, ...]:
        """The status changes since the last call, oldest first."""
        return self._book.take_transitions()

    def stats(self) -> SchedulerStats:
        """Counts and gauges of this instant."""
        book = self._book
        return SchedulerStats(
            received=book.num_received,
            finished=book.num_ended[Status.FINISHED],
            aborted=book.num_ended[Status.ABORTED],
            rejected=book.num_rejected,
            failed=book.num_ended[Status.FAILED],
            live=book.num_live,
            num_running_seqs=len(self._running),
            num_waiting_seqs=len(self._waiting),
            num_preemptions=book.num_preemptions,
            num_blocks=self._kv.num_blocks,
            num_free_blocks=self._kv.num_free_blocks,
            num_stored_tokens=sum(seq.num_computed for seq in self._running),
        )

    def check(self) -> None:
        """Raise ``InvariantViolation`` if the bookkeeping contradicts itself."""
        self._book.check()
        self._kv.check({seq.seq_id for seq in self._running})
        if len(self._running) + len(self._waiting) != len(self._book.sequences):
            raise InvariantViolation("a live sequence neither runs nor waits, or does both")
        if len(self._running) > self.config.max_num_seqs or self._running != sorted(self._running, key=by_order):
            raise InvariantViolation("too many running rows, or they are out of order")
        for seq in self._running:
            if seq.num_computed > self._kv.num_held(seq.seq_id) * self._kv.block_size:
                raise InvariantViolation(f"{seq.seq_id}: stored tokens lie outside of its block table")
        for row in self._in_flight.scheduled if self._in_flight else ():
            if self._kv.block_table(row.seq_id) != row.block_table:
                raise InvariantViolation(f"{row.seq_id}: the blocks of a row in flight changed hands")

    # -- how a step is filled ------------------------------------------------------------------------------------

    def _fill_step(self, preempted: list[SeqId]) -> list[ScheduledSequence]:
        """One pass over running and waiting rows, merged in the one order; appends to ``preempted``."""
        budget = Budget(self._max_num_batched_tokens, self.config.max_num_seqs, len(self._running))
        rows: list[ScheduledSequence] = []
        door_open = True
        position = 0
        while True:
            newcomer = self._waiting.head if door_open else None
            seq = self._running[position] if position < len(self._running) else None
            if newcomer is not None and (seq is None or newcomer.key < seq.key):
                row = self._admit(newcomer, budget)
                door_open = row is not None
            elif seq is not None:
                row, evicted = self._continue(position, budget)
                preempted += evicted  # they stay out of this step: what was promised before no longer fits
            else:
                return rows
            if row is not None:
                rows.append(row)
                position += 1

    def _continue(self, position: int, budget: Budget) -> tuple[ScheduledSequence | None, list[SeqId]]:
        """The next token or chunk of a running row, and whom it cost their memory; no row if it was itself."""
        seq = self._running[position]
        num_tokens = budget.continue_row(seq.num_behind)
        evicted: list[SeqId] = []
        while (table := self._kv.allocate(seq.seq_id, seq.num_computed + num_tokens)) is None:
            index = victim_index(self._running, position, self._promises)
            if index is None:
                raise InvariantViolation(f"{seq.seq_id}: no memory for a protected row")
            victim = self._running.pop(index)
            self._preempt(victim, f"no block for {seq.seq_id}")
            evicted.append(victim.seq_id)
            budget.leave()
            if victim is seq:
                return None, evicted
        return _row(seq, num_tokens, table), evicted

    def _admit(self, seq: Sequence, budget: Budget) -> ScheduledSequence | None:
        """The first tokens of the row at the head of the queue, or ``None`` if seats, tokens or memory refuse."""
        num_tokens = budget.offer_new_row(seq.num_behind, whole=not self.config.enable_chunked_prefill)
        if num_tokens < 1 or self._promises.num_blocks(seq) > self._promises.num_spare_blocks(self._running):
            return None
        table = self._kv.allocate(seq.seq_id, num_tokens)
        if table is None:
            raise InvariantViolation(f"{seq.seq_id}: memory was promised twice")
        if self._promises.is_protected(seq):
            self._kv.set_aside(seq.seq_id, seq.max_num_stored)
        budget.enter(num_tokens)
        self._waiting.remove(seq)
        self._book.move(seq, Status.RUNNING, self._num_steps, "admitted")
        insort(self._running, seq, key=by_order)
        return _row(seq, num_tokens, table)

    def _retry_row(self, seq: Sequence) -> ScheduledSequence:
        """The row of a failed step once more, alone: if it fails again, it is the culprit."""
        return _row(seq, seq.retry_len, self._kv.block_table(seq.seq_id))

    def _preempt(self, seq: Sequence, cause: str) -> None:
        """Take a row's memory away; its tokens stay, and it waits at its old place in the order."""
        self._kv.free(seq.seq_id)
        seq.num_computed = 0
        seq.num_preemptions += 1
        self._book.move(seq, Status.PREEMPTED, self._num_steps, cause)
        self._waiting.push(seq)

    def _introduce(self, rows: list[ScheduledSequence]) -> tuple[NewSequence, ...]:
        """The rows that the executor meets for the first time."""
        new = []
        for row in rows:
            seq = self._book.sequences[row.seq_id]
            if not seq.known_to_executor:
                seq.known_to_executor = True
                request = seq.request
                new.append(NewSequence(seq.seq_id, request.prompt_token_ids, request.sampling, request.eos_token_ids))
        return tuple(new)

    # -- what a step gave ----------------------------------------------------------------------------------------

    def _take_tokens(self, seq: Sequence, tokens: tuple[SampledToken, ...], stop: Stop | None) -> TokenEvent:
        """Append what was sampled, up to the token that ends the sequence."""
        for index, token in enumerate(tokens):
            seq.token_ids.append(token.token_id)
            finish = self._finish(seq, stop.stop if stop and stop.num_tokens == index + 1 else None)
            if finish is not None:
                self._end(seq, Status.FINISHED, finish[0])
                return TokenEvent(seq.seq_id, tokens[: index + 1], *finish)
        return TokenEvent(seq.seq_id, tokens)

    def _finish(self, seq: Sequence, stop: str | None) -> tuple[FinishReason, TokenId | str | None] | None:
        """Why the sequence ends with its newest token, and the token or string that ended it; ``None`` to go on."""
        sampling = seq.request.sampling
        token_id = seq.token_ids[-1]
        if seq.num_output_tokens >= sampling.min_tokens:
            if not sampling.ignore_eos and token_id in seq.request.eos_token_ids:
                return FinishReason.STOP, None
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP, token_id
            if stop is not None:
                return FinishReason.STOP, stop
        if len(seq.token_ids) >= seq.max_num_tokens:
            return FinishReason.LENGTH, None
        return None

    def _update_failed(self, output: SchedulerOutput, failure: StepFailed) -> tuple[TokenEvent, ...]:
        """Nobody advances: the rows run again one by one, and one that fails again is the culprit."""
        events = []
        for row in output.scheduled:
            seq = self._book.sequences[row.seq_id]
            if seq.aborted:
                self._end(seq, Status.ABORTED, "abort")
            elif seq.retry_len:
                events.append(self._fail(seq, failure.message))
            else:
                seq.retry_len = len(row.token_ids)
        return tuple(events)

    def _fail(self, seq: Sequence, message: str) -> TokenEvent:
        self._end(seq, Status.FAILED, message)
        return TokenEvent(seq.seq_id, (), FinishReason.ERROR, None, message)

    def _end(self, seq: Sequence, status: Status, cause: str) -> None:
        """Leave at once: blocks are free, and the executor is told with the next step."""
        if seq.status is Status.RUNNING:
            self._kv.free(seq.seq_id)
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        self._book.move(seq, status, self._num_steps, cause)

    def _max_num_tokens(self, request: Request) -> int:
        """Prompt and output of one choice, at most. Raises ``Rejected``."""
        num_prompt = len(request.prompt_token_ids)
        limit = self._max_model_len
        asked = request.sampling.max_tokens
        if num_prompt + (asked or 1) > limit:
            wanted = f"{asked} new tokens" if asked else "at least 1 new token"
            raise Rejected(
                Reason.CONTEXT_LENGTH,
                f"the prompt has {num_prompt} tokens and {wanted} were asked for; together they must not exceed "
                f"max_model_len, which is {limit}",
                "max_tokens" if num_prompt < limit else "prompt",
            )
        if self._book.live(request.request_id):
            raise Rejected(Reason.INVALID, f"request id {request.request_id!r} is in use", "request_id")
        queue_limit = self.config.max_num_waiting_seqs
        if queue_limit is not None and request.sampling.n > queue_limit:
            raise Rejected(
                Reason.INVALID, f"n is {request.sampling.n}, and no more than {queue_limit} sequences may wait", "n"
            )
        if queue_limit is not None and len(self._waiting) + request.sampling.n > queue_limit:
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{len(self._waiting)} sequences wait already and the limit is {queue_limit}",
                retry_after_s=1.0,
            )
        return limit if asked is None else num_prompt + asked


def _row(seq: Sequence, num_tokens: int, table: BlockTable) -> ScheduledSequence:
    start = seq.num_computed
    end = start + num_tokens
    is_last = end == len(seq.token_ids)
    token_ids = (seq.token_ids[-1],) if is_last and num_tokens == 1 else tuple(seq.token_ids[start:end])
    return ScheduledSequence(seq.seq_id, token_ids, start, table, int(is_last))
