"""Continuous batching (Orca, OSDI 2022): who runs is decided again before every forward pass.

One pass over the one order. Every running row gets its token or its next chunk; if memory refuses, rows at the tail
of the order are preempted until it fits. A waiting row may enter while the door is open; the first refusal closes
the door, never the loop: the rows behind it still run.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from inflight.core.budget import Budget
from inflight.core.errors import InvariantViolation, StepFailed
from inflight.core.lifecycle import Status, Transition
from inflight.core.output import (
    MAIN_LANE,
    Idle,
    LaneId,
    ScheduledSequence,
    SchedulerOutput,
    SchedulerStats,
    StepResult,
    Stop,
    TokenEvent,
)
from inflight.core.queue import by_order
from inflight.core.request import Request, RequestId, SeqId
from inflight.core.sequence import Sequence
from inflight.schedulers.admission import Promises
from inflight.schedulers.book import Book
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.memory import make_kv_cache
from inflight.schedulers.preemption import victim_index
from inflight.schedulers.progress import event_of, introduce, row_of, settle
from inflight.schedulers.reception import Reception


class ContinuousScheduler:
    """One lane, one KV cache, one order. Raises ``ValueError`` if one sequence alone could outgrow the cache."""

    lanes: tuple[LaneId, ...] = (MAIN_LANE,)

    def __init__(self, config: ContinuousConfig, num_blocks: int, block_size: int) -> None:
        if config.max_num_batched_tokens is None:
            raise ValueError("max_num_batched_tokens must be decided before a scheduler is made")
        self.config = config
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._kv = make_kv_cache(config, num_blocks, block_size)
        self._promises = Promises(self._kv, config.max_preemptions)
        self._book = Book()
        self._reception = Reception(config, self._book, config.max_model_len or 0, "max_model_len")
        self._waiting = self._reception.waiting
        self._running: list[Sequence] = []  # in the one order
        self._in_flight: SchedulerOutput | None = None
        self._num_steps = 0

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: Request, now_s: float) -> None:
        """Queue the choices of a request. Raises ``Rejected`` if it can never run, or if the queue is full."""
        self._reception.add(request, now_s)

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """End a request in any status; unknown ids are ignored. A row in flight leaves in ``update``."""
        in_flight = {row.seq_id for row in self._in_flight.scheduled} if self._in_flight else set()
        for seq in self._book.live(request_id):
            if seq.seq_id in in_flight:
                seq.aborted = True
            else:
                self._leave(seq, Status.ABORTED, "abort")

    def flush(self, now_s: float) -> None:
        """Nobody waits for others here."""

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
            new=introduce(self._book.sequences[row.seq_id] for row in rows),
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
        events = []
        for seq, tokens, ending in settle(self._book.sequences, output, result, stops):
            if ending is not None:
                self._leave(seq, ending.status, ending.cause)
            events.append(event_of(seq.seq_id, tokens, ending))
        return tuple(event for event in events if event is not None)

    # -- what others may ask -------------------------------------------------------------------------------------

    def transitions(self) -> tuple[Transition, ...]:
        """The status changes since the last call, oldest first."""
        return self._book.take_transitions()

    def stats(self) -> SchedulerStats:
        """Counts and gauges of this instant."""
        return self._book.stats(
            num_running_seqs=len(self._running),
            num_waiting_seqs=len(self._waiting),
            num_stored_tokens=sum(seq.num_computed for seq in self._running),
            kv=self._kv,
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
        return row_of(seq, num_tokens, table), evicted

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
        return row_of(seq, num_tokens, table)

    def _retry_row(self, seq: Sequence) -> ScheduledSequence:
        """The row of a failed step once more, alone: if it fails again, it is the culprit."""
        return row_of(seq, seq.retry_len, self._kv.block_table(seq.seq_id))

    def _preempt(self, seq: Sequence, cause: str) -> None:
        """Take a row's memory away; its tokens stay, and it waits at its old place in the order."""
        self._kv.free(seq.seq_id)
        seq.num_computed = 0
        seq.num_preemptions += 1
        self._book.move(seq, Status.PREEMPTED, self._num_steps, cause)
        self._waiting.push(seq)

    def _leave(self, seq: Sequence, status: Status, cause: str) -> None:
        """End at once: blocks are free, and the executor is told with the next step."""
        if seq.status is Status.RUNNING:
            self._kv.free(seq.seq_id)
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        self._book.move(seq, status, self._num_steps, cause)
