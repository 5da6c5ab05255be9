"""Request-level batching: a batch leaves together, nobody joins it, and it comes back together.

One gang machine. Static and dynamic batching differ in the trigger alone: see ``forming.py``. Each row holds a seat
until the last row of its batch has ended; what a row gave is withheld until then. With padding the batch is the
rectangle of the literature: prompts are filled up on the left to the longest one, and rows that have ended are
computed on; without it the same policy runs ragged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight.core.errors import InvariantViolation, StepFailed
from inflight.core.lifecycle import Status, Transition
from inflight.core.output import (
    MAIN_LANE,
    DeadRow,
    Idle,
    LaneId,
    SampledToken,
    SchedulerOutput,
    SchedulerStats,
    StepResult,
    Stop,
    TokenEvent,
)
from inflight.core.request import Request, RequestId, SeqId
from inflight.core.sequence import Sequence
from inflight.schedulers.book import Book
from inflight.schedulers.config import RequestLevelConfig
from inflight.schedulers.forming import form_batch
from inflight.schedulers.memory import make_kv_cache, num_scratch_blocks
from inflight.schedulers.progress import Ending, event_of, introduce, row_of, settle
from inflight.schedulers.reception import Reception


@dataclass(slots=True)
class _Seat:
    """A row's place in the batch: its own until the batch ends, whatever becomes of the row."""

    seq: Sequence
    tokens: list[SampledToken] = field(default_factory=list)  # withheld
    ending: Ending | None = None  # withheld

    @property
    def runs(self) -> bool:
        """True until the row has ended."""
        return self.ending is None and self.seq.status is Status.RUNNING

    @property
    def is_awaited(self) -> bool:
        """True if the row has ended and its caller waits for the batch to come back."""
        return self.ending is not None and self.seq.status is Status.RUNNING


class RequestLevelScheduler:
    """One lane, one batch at a time. Raises ``ValueError`` if one sequence alone could outgrow the cache."""

    lanes: tuple[LaneId, ...] = (MAIN_LANE,)

    def __init__(self, config: RequestLevelConfig, num_blocks: int, block_size: int) -> None:
        self.config = config
        self._kv = make_kv_cache(config, num_blocks, block_size)
        self._max_model_len = config.max_model_len or 0  # decided, or there would be no cache
        num_scratch = num_scratch_blocks(config, self._max_model_len, block_size)
        self._scratch = tuple(range(num_blocks - num_scratch, num_blocks))
        self._trigger = config.trigger
        bounds = {"max_model_len": self._max_model_len}
        if self._trigger.max_tokens is not None:
            bounds["max_tokens_in_batch"] = self._trigger.max_tokens
        limit_name = min(bounds, key=lambda name: bounds[name])
        self._book = Book()
        self._reception = Reception(config, self._book, bounds[limit_name], limit_name)
        self._seats: list[_Seat] = []  # of the batch that runs, in the one order
        self._num_flushed = 0  # sequences that had come at the last flush
        self._in_flight: SchedulerOutput | None = None
        self._num_steps = 0

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: Request, now_s: float) -> None:
        """Queue the choices of a request. Raises ``Rejected`` if it can never run, or if the queue is full."""
        self._reception.add(request, now_s)

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """End a request in any status; unknown ids are ignored. A row in flight leaves in ``update``.

        So does the last row that runs in a batch to which others belong that have ended: it is computed once more,
        and the others come back in that ``update``.
        """
        seats = {seat.seq.seq_id: seat for seat in self._seats}
        for seq in self._book.live(request_id):
            seat = seats.get(seq.seq_id)
            if seat is None:
                self._reception.waiting.remove(seq)
            if seat is not None and seat.runs:
                seq.aborted = True
            else:
                self._book.move(seq, Status.ABORTED, self._num_steps, "abort")
        self._let_aborted_go()

    def flush(self, now_s: float) -> None:
        """Nobody else comes for now: those who wait need not wait for others."""
        self._num_flushed = self._reception.num_sequences

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, lane: LaneId, now_s: float) -> SchedulerOutput | Idle:
        """Decide the next step of the batch; or let one leave, or say until when to wait for others."""
        if self._in_flight is not None:
            raise InvariantViolation(f"step {self._in_flight.step} is still in flight")
        if not self._seats:
            batch = form_batch(self._reception.waiting, self._trigger, now_s, self._is_flushed, self._fit_together)
            if not batch.rows:
                return Idle(batch.wake_at_s)
            for seq in batch.rows:
                self._reception.waiting.remove(seq)
                self._book.move(seq, Status.RUNNING, self._num_steps, "its batch leaves")
            self._seats = [_Seat(seq) for seq in batch.rows]
        running = [seat.seq for seat in self._seats if seat.runs]
        suspect = next((seq for seq in running if seq.retry_len), None)
        self._in_flight = self._step(lane, [suspect] if suspect else running, self.config.padding and not suspect)
        self._num_steps += 1
        return self._in_flight

    def update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        now_s: float,
    ) -> tuple[TokenEvent, ...]:
        """Advance every row by what it ran; what the rows gave comes when the last of them has ended.

        A row that failed is told at once, without what it gave before.
        """
        if output is not self._in_flight and output != self._in_flight:
            raise InvariantViolation(f"step {output.step} is not the one in flight")
        self._in_flight = None
        seats = {seat.seq.seq_id: seat for seat in self._seats}
        events = []
        for seq, tokens, ending in settle(self._book.sequences, output, result, stops):
            seat = seats[seq.seq_id]
            seat.tokens += tokens
            if ending is None:
                continue
            self._kv.free(seq.seq_id)
            if ending.status is Status.FINISHED:
                seat.ending = ending
            else:
                self._book.move(seq, ending.status, self._num_steps, ending.cause)
                events.append(event_of(seq, (), ending))
        if not any(seat.runs for seat in self._seats):
            events += self._release()
        return tuple(event for event in events if event is not None)

    # -- what others may ask -------------------------------------------------------------------------------------

    def transitions(self) -> tuple[Transition, ...]:
        """The status changes since the last call, oldest first."""
        return self._book.take_transitions()

    def stats(self) -> SchedulerStats:
        """Counts and gauges of this instant."""
        return self._book.stats(
            num_running_seqs=sum(seat.seq.status is Status.RUNNING for seat in self._seats),
            num_waiting_seqs=len(self._reception.waiting),
            num_stored_tokens=sum(seat.seq.num_computed for seat in self._seats if seat.runs),
            kv=self._kv,
        )

    def check(self) -> None:
        """Raise ``InvariantViolation`` if the bookkeeping contradicts itself."""
        self._book.check()
        self._kv.check({seat.seq.seq_id for seat in self._seats if seat.runs}, ())
        seated = [seat for seat in self._seats if seat.seq.status is Status.RUNNING]
        if len(seated) + len(self._reception.waiting) != len(self._book.sequences):
            raise InvariantViolation("a live sequence neither runs nor waits, or does both")
        if len(self._seats) > self._trigger.max_rows:
            raise InvariantViolation(f"{len(self._seats)} rows in a batch of {self._trigger.max_rows}")
        if self._seats and not any(seat.runs for seat in self._seats):
            raise InvariantViolation("a batch has ended and was not given back")
        for row in self._in_flight.scheduled if self._in_flight else ():
            if self._kv.block_table(row.seq_id) != row.block_table:
                raise InvariantViolation(f"{row.seq_id}: the blocks of a row in flight changed hands")

    # -- the batch -----------------------------------------------------------------------------------------------

    def _is_flushed(self, seq: Sequence) -> bool:
        return seq.key[1] < self._num_flushed

    def _fit_together(self, rows: list[Sequence]) -> bool:
        """Whether rows can all run to their ends: nobody is preempted here."""
        return sum(self._kv.num_blocks_for(seq.max_num_stored) for seq in rows) <= self._kv.num_blocks

    def _step(self, lane: LaneId, running: list[Sequence], padded: bool) -> SchedulerOutput:
        rows = []
        for seq in running:
            table = self._kv.allocate(seq.seq_id, seq.num_tokens)
            if table is None:
                raise InvariantViolation(f"{seq.seq_id}: no memory for a row of a batch that fits")
            rows.append(row_of(seq, seq.num_behind, table))
        padded_to = max(len(row.token_ids) for row in rows) if padded else None
        dead = self._dead_rows(running[0], padded_to) if padded_to is not None else ()
        num_scratch_tokens = 0
        if padded_to is not None:
            num_pads = padded_to - min(len(row.token_ids) for row in rows)
            num_scratch_tokens = max([num_pads, *(row.start + padded_to for row in dead)])
        return SchedulerOutput(
            lane=lane,
            step=self._num_steps,
            scheduled=tuple(rows),
            new=introduce(running),
            finished=self._book.take_ended_in_executor(),
            padded_to=padded_to,
            dead=dead,
            scratch_table=self._scratch[: -(-num_scratch_tokens // self._kv.block_size)],
        )

    def _dead_rows(self, running: Sequence, num_tokens: int) -> tuple[DeadRow, ...]:
        """The seats of rows that have ended, each as far past its prompt as those that still run."""
        num_past_prompt = running.num_computed - running.num_prompt_tokens
        last = self._max_model_len - num_tokens
        return tuple(
            DeadRow(seat.seq.seq_id, min(seat.seq.num_prompt_tokens + num_past_prompt, last))
            for seat in self._seats
            if not seat.runs
        )

    def _let_aborted_go(self) -> None:
        """Aborted rows that are not in flight leave; the last one not before the step in which others come back."""
        in_flight = {row.seq_id for row in self._in_flight.scheduled} if self._in_flight else set()
        running = [seat.seq for seat in self._seats if seat.runs]
        leaving = [seq for seq in running if seq.aborted and seq.seq_id not in in_flight]
        if len(leaving) == len(running):
            if any(seat.is_awaited for seat in self._seats):
                leaving = leaving[1:]
            else:
                self._seats = []
        for seq in leaving:
            self._kv.free(seq.seq_id)
            self._book.move(seq, Status.ABORTED, self._num_steps, "abort")

    def _release(self) -> list[TokenEvent | None]:
        """The batch comes back: everybody gets what was withheld."""
        seats, self._seats = self._seats, []
        events = []
        for seat in seats:
            if seat.is_awaited and seat.ending is not None:
                self._book.move(seat.seq, seat.ending.status, self._num_steps, seat.ending.cause)
                events.append(event_of(seat.seq, tuple(seat.tokens), seat.ending))
        return events
