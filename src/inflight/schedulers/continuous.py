"""Continuous batching (Orca, OSDI 2022): who runs is decided again before every forward pass.

One pass over the one order. Every running row gets its token or its next chunk; if memory refuses, rows at the tail
of the order are preempted until it fits. A waiting row may enter while the door is open; the first refusal closes
the door, never the loop: the rows behind it still run. A row comes in with the KV that others have computed of its
beginning, or that it had to leave in the host tier; of a request's choices the first computes the prompt, and the
others are passed over until they can share it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inflight.core.budget import Budget
from inflight.core.errors import InvariantViolation, StepFailed
from inflight.core.lifecycle import Status, Transition
from inflight.core.output import (
    MAIN_LANE,
    BlockCopy,
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
from inflight.schedulers.admission import Promises, make_admission
from inflight.schedulers.book import Book
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.memory import make_kv_cache
from inflight.schedulers.preemption import SwapOrRecompute, victim_index
from inflight.schedulers.progress import event_of, introduce, row_of, settle
from inflight.schedulers.reception import Reception


@dataclass(slots=True)
class _Step:
    """A step that is being filled."""

    budget: Budget
    rows: list[ScheduledSequence] = field(default_factory=list)
    preempted: list[SeqId] = field(default_factory=list)
    swapped_out: list[SeqId] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


class ContinuousScheduler:
    """One lane, one KV cache, one order. Raises ``ValueError`` if one sequence alone could outgrow the cache."""

    lanes: tuple[LaneId, ...] = (MAIN_LANE,)

    def __init__(
        self,
        config: ContinuousConfig,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        hash_key: bytes = b"",
    ) -> None:
        if config.max_num_batched_tokens is None:
            raise ValueError("max_num_batched_tokens must be decided before a scheduler is made")
        self.config = config
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._kv = make_kv_cache(config, num_blocks, block_size, num_host_blocks, hash_key)
        self._promises = Promises(self._kv, config.max_preemptions, config.kv_reserve_blocks)
        self._admission = make_admission(config, self._kv)
        self._swap_or_recompute = SwapOrRecompute(config.preemption_mode)
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
        step = _Step(Budget(self._max_num_batched_tokens, self.config.max_num_seqs, len(self._running)))
        suspect = next((seq for seq in self._running if seq.retry_len), None)
        if suspect is not None:
            self._run_again(suspect, step)
        else:
            self._fill(step)
        if not step.rows:
            return Idle()
        self._in_flight = SchedulerOutput(
            lane=lane,
            step=self._num_steps,
            scheduled=tuple(step.rows),
            new=introduce(self._book.sequences[row.seq_id] for row in step.rows),
            finished=self._book.take_ended_in_executor(),
            preempted=tuple(step.preempted),
            swapped_out=tuple(step.swapped_out),
            copies=tuple(step.copies),
        )
        self._num_steps += 1
        return self._in_flight

    def update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        now_s: float,
    ) -> tuple[TokenEvent, ...]:
        """Advance every row by what it ran; rows that ended free their blocks before this returns.

        What a step that failed should have swapped out is computed again: nobody knows what became of it.
        """
        if output is not self._in_flight and output != self._in_flight:
            raise InvariantViolation(f"step {output.step} is not the one in flight")
        self._in_flight = None
        if isinstance(result, StepFailed):
            for seq_id in output.swapped_out:
                self._kv.free(seq_id)
                if seq_id in self._book.sequences:
                    self._book.sequences[seq_id].num_computed = 0
        else:
            self._swap_or_recompute.observe(output, result)
        events = []
        for seq, tokens, ending in settle(self._book.sequences, output, result, stops):
            if not isinstance(result, StepFailed) and (ending is None or ending.status is Status.FINISHED):
                self._kv.commit(seq)
            if ending is not None:
                self._leave(seq, ending.status, ending.cause)
            events.append(event_of(seq, tokens, ending))
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
        self._kv.check({seq.seq_id for seq in self._running}, {seq.seq_id for seq in self._waiting})
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

    def _fill(self, step: _Step) -> None:
        """One pass over running and waiting rows, merged in the one order."""
        newcomers = self._newcomers()
        newcomer = next(newcomers, None)
        position = 0
        while newcomer is not None or position < len(self._running):
            seq = self._running[position] if position < len(self._running) else None
            if newcomer is not None and (seq is None or newcomer.key < seq.key):
                row = self._admit(newcomer, step)
                newcomer = next(newcomers, None) if row else None  # who is refused closes the door
            else:
                row = self._continue(position, step)
                newcomer = None if step.preempted else newcomer  # and so does a row that had to go
            if row is not None:
                step.rows.append(row)
                position += 1

    def _newcomers(self) -> Iterator[Sequence]:
        """Those who wait as the step begins, in their order."""
        for seq in tuple(self._waiting):
            if not self._awaits_sibling(seq):
                yield seq

    def _awaits_sibling(self, seq: Sequence) -> bool:
        """Whether another choice of the same request is about to make blocks findable that this one could share."""
        if seq.request.sampling.n == 1 or not self._kv.can_share:
            return False
        num_to_share = (seq.num_prompt_tokens - 1) // self._kv.block_size * self._kv.block_size
        return any(
            sibling.status is Status.RUNNING and sibling.num_computed < num_to_share
            for sibling in self._book.live(seq.seq_id[0])
        )

    def _continue(self, position: int, step: _Step) -> ScheduledSequence | None:
        """The next token or chunk of a running row, at the cost of those behind it; ``None`` if it was preempted."""
        seq = self._running[position]
        num_tokens = step.budget.continue_row(seq.num_behind)
        while (table := self._kv.allocate(seq.seq_id, seq.num_computed + num_tokens)) is None:
            index = victim_index(self._running, position, self._promises)
            if index is None:
                raise InvariantViolation(f"{seq.seq_id}: no memory for a protected row")
            victim = self._running.pop(index)
            self._preempt(victim, f"no block for {seq.seq_id}", step)
            if victim is seq:
                return None
        return row_of(seq, num_tokens, table)

    def _admit(self, seq: Sequence, step: _Step) -> ScheduledSequence | None:
        """The first tokens of the next newcomer, or ``None`` if seats, tokens or memory refuse."""
        if step.budget.is_spent:
            return None
        reuse = self._kv.find(seq)
        num_tokens = step.budget.offer_new_row(
            seq.num_tokens - reuse.num_tokens, whole=not self.config.enable_chunked_prefill
        )
        if num_tokens < 1 or not self._promises.can_keep(seq, reuse, self._running):
            return None
        if self._running and not self._admission.admits(seq, reuse, self._running):
            return None
        grant = self._kv.admit(seq, reuse, reuse.num_tokens + num_tokens)
        if grant is None:
            raise InvariantViolation(f"{seq.seq_id}: memory was promised twice")
        if self._promises.is_protected(seq):
            self._kv.set_aside(seq.seq_id, seq.max_num_stored)
        seq.num_computed = reuse.num_tokens
        if seq.status is Status.WAITING:
            seq.num_cached_tokens = reuse.num_tokens
            self._book.num_prefix_query_tokens += seq.num_prompt_tokens if self._kv.can_share else 0
            self._book.num_prefix_hit_tokens += reuse.num_tokens
        step.budget.enter(num_tokens)
        step.copies += grant.copies
        self._waiting.remove(seq)
        self._book.move(seq, Status.RUNNING, self._num_steps, "admitted")
        insort(self._running, seq, key=by_order)
        return row_of(seq, num_tokens, grant.table)

    def _run_again(self, seq: Sequence, step: _Step) -> None:
        """The row of a failed step once more, alone: if it fails again, it is the culprit."""
        step.rows.append(row_of(seq, seq.retry_len, self._kv.block_table(seq.seq_id)))
        step.copies += self._kv.coming_in(seq.seq_id)

    def _preempt(self, seq: Sequence, cause: str, step: _Step) -> None:
        """Take a row's memory away; its tokens stay, and it waits at its old place in the order."""
        copies = None
        if self._swap_or_recompute.swaps(seq.num_computed, self._kv.num_blocks_for(seq.num_computed)):
            copies = self._kv.swap_out(seq)
        if copies is None:
            self._kv.free(seq.seq_id)
            seq.num_computed = 0
        else:
            step.copies += copies
            step.swapped_out.append(seq.seq_id)
        seq.num_preemptions += 1
        step.preempted.append(seq.seq_id)
        step.budget.leave()
        self._admission.on_preemption()
        self._book.move(seq, Status.PREEMPTED, self._num_steps, cause)
        self._waiting.push(seq)

    def _leave(self, seq: Sequence, status: Status, cause: str) -> None:
        """End at once: blocks are free, and the executor is told with the next step."""
        self._kv.free(seq.seq_id)
        if seq.status is Status.RUNNING:
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        self._book.move(seq, status, self._num_steps, cause)
