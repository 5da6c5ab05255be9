"""The laws of request-level batching, checked at every event of a world.

The account knows for every row what it will give alone; so it knows, step by step, what must happen.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import count

from inflight.core.errors import StepFailed
from inflight.core.output import FinishReason, Idle, SampledToken, SchedulerOutput, StepResult, TokenEvent
from inflight.core.request import Request, SamplingParams
from inflight.metrics.ledger import Ledger
from inflight.schedulers.config import RequestLevelConfig
from laws.gang import Gang, RequestLevelReport
from laws.worlds import TICKS_PER_S, Abort, World


def play_request_level(world: World) -> RequestLevelReport:
    play = _Play(world)
    play.run()
    play.epilogue()
    return play.report


class _Play:
    def __init__(self, world: World) -> None:
        assert isinstance(world.config, RequestLevelConfig)
        self.world, self.config = world, world.config
        self.gang = Gang(world)
        self.report, self.scheduler, self.law = self.gang.report, self.gang.scheduler, self.gang.law
        self.ledger = Ledger(self.law.max_rows)
        self.num_computed_tokens = 0
        self.now = 0  # ticks
        self.num_steps = 0
        self.events: list[tuple[int, int, int, Request | Abort | None]] = []  # a heap: tick, kind, number, what
        number = count()
        last_arrival = max([0, *world.arrivals])
        for kind, events in enumerate((world.arrivals, world.aborts)):
            for tick, whats in events.items():
                for what in whats:
                    heapq.heappush(self.events, (tick, kind, next(number), what))
        for tick in (*world.flushes, last_arrival):
            heapq.heappush(self.events, (tick, 2, next(number), None))
        # Every batch holds a row, and all of its rows run at once: at most one step for each token of one of them.
        # A failed step costs at most one more for each of its rows.
        per_failure = 1 + self.law.max_rows
        self.step_bound = world.num_seqs * (world.max_num_tokens + 1) + len(world.failures) * per_failure
        # The engine sleeps only until the next event, or until a window closes, and then a batch leaves.
        self.idle_bound = len(self.events) + world.num_seqs + 1

    @property
    def now_s(self) -> float:
        return self.now / TICKS_PER_S

    # -- time ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        num_idle = 0
        while True:
            self.take_events(self.now)
            output = self.scheduler.schedule("main", self.now_s)
            self.scheduler.check()
            if isinstance(output, SchedulerOutput):
                self.step(output)
                assert self.num_steps <= self.step_bound, f"L5: not finished after {self.num_steps} steps"
                continue
            self.check_idle(output)
            if not self.events and not self.gang.open:
                return
            num_idle += 1
            assert num_idle <= self.idle_bound, "L5: it wakes and wakes"
            next_event = self.events[0][0] if self.events else math.inf
            wake = math.inf if output.wake_at_s is None else output.wake_at_s * TICKS_PER_S
            assert min(next_event, wake) < math.inf, f"L5: {sorted(self.gang.open)} wait for ever"
            assert min(next_event, wake) > self.now, "L12: idle until now"
            self.now = int(min(next_event, wake))

    def step(self, output: SchedulerOutput) -> None:
        self.num_steps += 1
        self.report.outputs.append(output)
        if not self.gang.seats:
            self.leave(output)
        self.check_output(output)
        self.gang.in_flight = frozenset(row.seq_id for row in output.scheduled)
        end = self.now + self.world.durations[output.step % len(self.world.durations)]
        if self.world.taken_in_flight:
            self.take_events(end - 1)
        result: StepResult | StepFailed
        try:
            result = self.gang.executor.execute(output)
            num_computed = result.num_computed_tokens
            assert num_computed == output.num_computed_tokens, f"L4: {num_computed} tokens were computed"
        except StepFailed as failure:
            result = failure
        self.now = end
        self.update(output, result)
        self.scheduler.check()
        self.check_books()

    def take_events(self, tick: int) -> None:
        """Hear everybody who has come or spoken until ``tick``; ends at that time."""
        while self.events and self.events[0][0] <= tick:
            when, _, _, what = heapq.heappop(self.events)
            self.now = max(self.now, when)
            match what:
                case Request():
                    self.gang.come(replace(what, arrival_s=when / TICKS_PER_S), self.now_s)
                case Abort():
                    self.gang.give_up(what.request_id, self.now_s)
                case None:
                    self.scheduler.flush(self.now_s)
                    for row in self.gang.waiting.values():
                        row.flush_s = min(row.flush_s, self.now_s)
            self.scheduler.check()

    # -- the laws ------------------------------------------------------------------------------------------------

    def check_idle(self, output: Idle) -> None:
        assert not self.gang.seats, "L12: idle while a batch runs"
        start_s = self.law.next_batch(self.gang.waiting.values(), self.gang.free_s).start_s
        assert start_s > self.now_s, f"window: idle at {self.now_s}, a batch must leave at {start_s}"
        wake_at_s = None if start_s == math.inf else start_s
        assert output.wake_at_s == wake_at_s, f"window: it will wake at {output.wake_at_s}, not at {wake_at_s}"

    def leave(self, output: SchedulerOutput) -> None:
        """A batch leaves: at the right time, with the right rows."""
        start_s, rows, why = self.law.next_batch(self.gang.waiting.values(), self.gang.free_s)
        found = [row.seq_id for row in output.scheduled]
        assert start_s == self.now_s, f"window: {found} left at {self.now_s}, {rows} must leave at {start_s}"
        assert found == rows, f"window: {found} left, {rows} must leave"
        self.report.batches[why] += 1
        self.gang.sit_down(rows)

    def check_output(self, output: SchedulerOutput) -> None:
        rows, running = output.scheduled, self.gang.running
        self.gang.check_tables(output)
        assert output.preempted == (), "L10: nobody is preempted here"
        seats = [seat for seat in running if seat.retries][:1] or running
        expected, found = [seat.seq_id for seat in seats], [row.seq_id for row in rows]
        assert found == expected, f"L12: {found} run, {expected} must"
        for row, seat in zip(rows, seats, strict=True):
            end = seat.num_prompt + seat.num_got
            assert row.start == seat.num_stored, f"L3: {row.seq_id} starts at {row.start}"
            assert list(row.token_ids) == seat.known[row.start :], f"L3: {row.seq_id} runs other tokens than it has"
            assert len(row.block_table) == self.world.num_held_for(end), f"L3: {row.seq_id}: blocks for {end}"
            assert row.num_logits == 1, f"L3: {row.seq_id}: no logits"
            seat.num_covered = end
        if seats[0].retries or not self.config.padding:
            assert (output.padded_to, output.dead, output.scratch_table) == (None, (), ()), "padding: none expected"
            return
        longest = max(len(row.token_ids) for row in rows)
        assert output.padded_to == longest, f"padding: padded to {output.padded_to}, the longest is {longest}"
        # Rows of a batch start together: each is as many tokens past its prompt as the others.
        num_got = {seat.num_got for seat in seats}
        assert len(num_got) == 1, f"padding: rows that are {num_got} tokens past their prompts"
        ended = [seat for seat in self.gang.seats if seat.fate is not None]
        last = self.config.max_model_len - longest
        dead = [(seat.seq_id, min(seat.num_prompt + max(num_got) - 1, last)) for seat in ended]
        assert list(output.dead) == dead, f"padding: dead rows {output.dead}, must be {dead}"
        num_pads = [longest - len(row.token_ids) for row in rows]
        num_scratch = max(max(num_pads), *(start + longest for _, start in dead), 0)
        num_blocks = self.world.blocks_of(num_scratch)
        assert len(output.scratch_table) == num_blocks, f"padding: scratch of {num_blocks} blocks needed"
        self.report.num_pads += sum(num_pads)
        self.report.num_dead_rows += len(dead)

    def update(self, output: SchedulerOutput, result: StepResult | StepFailed) -> None:
        step_failed = isinstance(result, StepFailed)
        stops = {} if step_failed else self.gang.stops_in(result)
        events = self.scheduler.update(output, result, stops, self.now_s)
        self.gang.in_flight = frozenset()
        self.report.num_failed_steps += step_failed
        sampled = {} if step_failed else {row.seq_id: row.tokens for row in result.sampled}
        seats = {seat.seq_id: seat for seat in self.gang.seats}
        expected: list[TokenEvent] = []
        for row in output.scheduled:
            seat = seats[row.seq_id]
            if seat.seq_id in self.gang.abort_asked:
                self.gang.stand_up(seat, "aborted")
            elif (step_failed and seat.retries) or (not step_failed and row.seq_id not in sampled):
                self.report.num_failed_rows += 1
                self.gang.stand_up(seat, "failed")
                expected.append(TokenEvent(seat.seq_id, (), FinishReason.ERROR))
            elif step_failed:
                seat.retries = True
            else:
                seat.retries = False
                token, wanted = sampled[row.seq_id][0].token_id, seat.wanted[seat.num_got]
                assert token == wanted, f"L8: {row.seq_id} got {token}, alone it gets {wanted}"
                seat.num_got += 1
                if seat.num_got == len(seat.wanted):
                    seat.fate = "finished"
        if not self.gang.running:
            for seat in self.gang.awaited:
                tokens = tuple(SampledToken(token) for token in seat.wanted)
                reason = self.gang.finish_reason(seat.request, seat.wanted)
                expected.append(TokenEvent(seat.seq_id, tokens, reason))
                self.gang.stand_up(seat, "finished")
            self.gang.seats, self.gang.free_s = [], self.now_s
        self.check_events(events, expected)
        self.ledger.on_update(output, step_failed, events)
        self.num_computed_tokens += output.num_computed_tokens
        num_counted = self.ledger.slots.num_computed_tokens
        assert num_counted == self.num_computed_tokens, f"ledger: {num_counted} of {self.num_computed_tokens}"

    def check_events(self, events: tuple[TokenEvent, ...], expected: list[TokenEvent]) -> None:
        found = [event._replace(stop_reason=None, error=None) if event.finish_reason else event for event in events]
        assert found == expected, f"withheld: callers got {found}, must get {expected}"
        for event in events:
            told = (event.error is not None) == (event.finish_reason is FinishReason.ERROR)
            assert told, f"L6: {event.seq_id}: {event.error}"

    def check_books(self) -> None:
        num_needed = sum(self.world.num_held_for(seat.num_covered) for seat in self.gang.running)
        self.gang.check_books(num_needed, num_needed)
        stats = self.scheduler.stats()
        num_seated = len(self.gang.running) + len(self.gang.awaited)
        assert stats.num_running_seqs == num_seated, f"L6: {stats.num_running_seqs} run or are withheld"
        assert stats.num_waiting_seqs == len(self.gang.waiting), f"L6: {stats.num_waiting_seqs} wait"
        num_stored = sum(seat.num_stored for seat in self.gang.running)
        assert stats.num_stored_tokens == num_stored, f"L1: {stats.num_stored_tokens} stored, {num_stored} expected"

    def epilogue(self) -> None:
        """L11: nothing is left behind, and one more caller finds an empty engine."""
        self.world = self.gang.world = replace(self.world, aborts={}, failures={})
        sampling = SamplingParams(max_tokens=1)
        probe = Request(request_id="probe", prompt_token_ids=(0,), sampling=sampling, arrival_s=self.now_s)
        self.gang.come(probe, self.now_s)
        self.events = [(self.now, 2, 0, None)]
        self.run()
        self.gang.check_empty("probe")
