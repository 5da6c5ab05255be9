"""The laws of continuous batching, checked at every step of a world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from fakes import unbatched
from inflight.core.errors import StepFailed
from inflight.core.output import FinishReason, Idle, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.schedulers.config import ContinuousConfig
from laws.account import Account
from laws.kv_account import KVAccount, weak_digest
from laws.order_law import OrderLaw
from laws.world import World

SECONDS_PER_STEP = 0.5


@dataclass
class ContinuousReport:
    preemptions: Counter[SeqId]
    memory: Counter[str]  # what happened to blocks
    outputs: list[SchedulerOutput] = field(default_factory=list)
    num_aborted_in_flight: int = 0
    num_failed_steps: int = 0
    num_rejected: int = 0
    num_split_prompts: int = 0


def play_continuous(world: World) -> ContinuousReport:
    play = _Play(world)
    step = 0
    while step <= world.last_event or play.account.live:
        play.turn(step)
        step += 1
        assert step <= play.step_bound, f"L5: not finished after {step} turns"
    play.epilogue(step)
    return play.report


class _Play:
    """One world being played, with its own account of what must be true."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.config, ContinuousConfig)
        self.world, self.config = world, world.config
        self.account = Account(world)
        self.scheduler = self.account.scheduler
        self.tokens: dict[SeqId, list[int]] = {}  # as the events gave them
        self.wanted: dict[SeqId, list[int]] = {}  # as they should be
        self.memory = KVAccount(world, self)
        self.stored = self.memory.stored  # running rows: tokens whose KV is stored
        self.order = OrderLaw(self.account, self.memory, self.config)
        self.report = ContinuousReport(preemptions=self.order.preemptions, memory=self.memory.counts)
        self.abort_asked: set[str] = set()
        self.retrying: set[SeqId] = set()
        # A row runs at most (max_preemptions + 1) times over at most max_model_len steps, and a failed step costs
        # at most one more step for each of its rows.
        per_seq = self.config.max_model_len * (self.config.max_preemptions + 1)
        num_failures = len(world.failures) + len(world.copy_failures)
        self.step_bound = 20 + world.num_seqs * per_seq + 2 * num_failures * (1 + self.config.max_num_seqs)
        if world.num_digests is not None:
            index = self.scheduler._kv._index
            index._digest = lambda seq, at: weak_digest(
                (seq.request.cache_salt, tuple(seq.token_ids[: (at + 1) * world.block_size])), world.num_digests
            )

    # -- one turn ------------------------------------------------------------------------------------------------

    def turn(self, step: int) -> None:
        now_s = step * SECONDS_PER_STEP
        for request in self.world.arrivals.get(step, ()):
            self.add(replace(request, arrival_s=now_s), now_s)
        self.abort(step, mid_step=False, now_s=now_s)
        output = self.scheduler.schedule("main", now_s)
        self.scheduler.check()
        if isinstance(output, Idle):
            assert not self.account.open, f"L12: idle while {sorted(self.account.open)} could run"
            assert output.wake_at_s is None, "L12: nothing will change by itself"
            self.abort(step, mid_step=True, now_s=now_s)
            return
        self.report.outputs.append(output)
        self.check_output(output)
        in_flight = {row.seq_id for row in output.scheduled}
        self.abort(step, mid_step=True, now_s=now_s, in_flight=in_flight)
        self.abort_copied(output, now_s, in_flight)
        result: StepResult | StepFailed
        try:
            result = self.account.executor.execute(output)
        except StepFailed as failure:
            result = failure
        self.update(output, result, now_s + SECONDS_PER_STEP / 2)
        self.scheduler.check()
        num_held = self.memory.num_held_blocks
        self.account.check_books(num_held, num_held)
        self.memory.check(self.scheduler.stats())
        self.account.executor.spoil(*self.memory.nobodys())

    def add(self, request: Request, now_s: float) -> None:
        choices = self.account.add(request, now_s)
        self.report.num_rejected += not choices
        for seq_id in choices:
            self.tokens[seq_id] = []
            self.wanted[seq_id] = unbatched(request, seq_id[1], self.config.max_model_len, self.world.vocab_size)

    def abort(self, step: int, mid_step: bool, now_s: float, in_flight: frozenset | set = frozenset()) -> None:
        for abort in self.world.aborts.get(step, ()):
            if abort.mid_step == mid_step:
                self.give_up(abort.request_id, now_s, in_flight)

    def abort_copied(self, output: SchedulerOutput, now_s: float, in_flight: set[SeqId]) -> None:
        """Give up a row whose blocks are being copied."""
        copied = [*output.swapped_out, *self.memory.host.coming_in(output)]
        chosen = self.world.copy_aborts.get(self.account.num_copying_steps + 1)
        if copied and chosen is not None:
            self.give_up(copied[chosen % len(copied)][0], now_s, in_flight)

    def give_up(self, request_id: str, now_s: float, in_flight: frozenset | set) -> None:
        choices = self.account.abort(request_id, now_s)
        self.memory.now += 1
        self.memory.counts["requests aborted"] += bool(choices)
        self.report.num_aborted_in_flight += bool(choices & in_flight)
        swapped = choices & self.memory.host.stored.keys()
        self.memory.counts["aborted while swapped out"] += bool(swapped - in_flight)
        self.memory.counts["aborted while coming in"] += bool(swapped & in_flight)
        if choices:
            self.abort_asked.add(request_id)
        for seq_id in choices - in_flight:
            self.end(seq_id, "aborted")
        self.scheduler.check()
        self.memory.check(self.scheduler.stats())

    # -- the laws ------------------------------------------------------------------------------------------------

    def check_output(self, output: SchedulerOutput) -> None:
        config = self.config
        rows = output.scheduled
        assert rows, "L12: a step without rows"
        assert output.num_tokens <= config.max_num_batched_tokens, "L4: token budget exceeded"
        assert len(rows) <= config.max_num_seqs, "L4: seat budget exceeded"
        assert output.num_computed_tokens == output.num_tokens, "L4: a pad or a dead row"
        scheduled = {row.seq_id for row in rows}
        assert len(scheduled) == len(rows), "L4: a row twice in one step"
        assert not scheduled & set(output.preempted), "L4: a row both scheduled and preempted"
        entering = self.order.check(output)
        self.retrying -= set(output.preempted)
        self.memory.begin(output, entering)
        self.account.check_tables(output, shared=self.memory.beginnings)
        num_partial = 0
        for row in rows:
            start, end = row.start, row.start + len(row.token_ids)
            known = self.known_tokens(row.seq_id)
            assert list(row.token_ids) == known[start:end], f"L3: {row.seq_id} runs other tokens than it has"
            assert row.token_ids, "L3: a row without tokens"
            assert len(row.block_table) * self.world.block_size >= end, f"L3: {row.seq_id}: table too short"
            assert row.num_logits == (end == len(known)), f"L3: {row.seq_id}: logits at the wrong place"
            num_partial += end < len(known)
        self.report.num_split_prompts += num_partial
        if self.retrying:
            assert len(rows) == 1, "L12: a failed row must be tried alone"
            assert scheduled <= self.retrying, "L12: a failed row must be tried alone"
        else:
            assert scheduled == self.stored.keys(), "L12: a running row was left out of a step"
            if num_partial and not output.preempted:
                assert config.enable_chunked_prefill, "L12: a prompt was split"
                full = output.num_tokens == config.max_num_batched_tokens
                assert full, "L12: a prompt was split without need"

    def known_tokens(self, seq_id: SeqId) -> list[int]:
        return [*self.account.live[seq_id[0]].prompt_token_ids, *self.tokens[seq_id]]

    def max_num_tokens(self, seq_id: SeqId) -> int:
        request = self.account.live[seq_id[0]]
        asked = request.sampling.max_tokens
        return self.config.max_model_len if asked is None else len(request.prompt_token_ids) + asked

    def salt(self, seq_id: SeqId) -> str:
        return self.account.live[seq_id[0]].cache_salt

    def update(self, output: SchedulerOutput, result: StepResult | StepFailed, now_s: float) -> None:
        stops = self.account.stops_in(result) if isinstance(result, StepResult) else {}
        events = {event.seq_id: event for event in self.scheduler.update(output, result, stops, now_s)}
        step_failed = isinstance(result, StepFailed)
        self.report.num_failed_steps += step_failed
        self.memory.counts["steps that failed"] += step_failed
        self.memory.now += 1
        if step_failed:
            self.memory.host.lost(output)
        blotted = set() if step_failed else {row.seq_id for row in result.failed}
        for row in output.scheduled:
            event = events.pop(row.seq_id, None)
            if event is not None:
                num_cached = self.memory.num_cached_tokens[row.seq_id]
                assert event.num_cached_tokens == num_cached, f"L3: {event}, should be {num_cached} cached tokens"
            if row.seq_id[0] in self.abort_asked:
                assert event is None, f"L11: {row.seq_id} was aborted and got an event"
                self.end(row.seq_id, "aborted")
            elif (step_failed and row.seq_id in self.retrying) or row.seq_id in blotted:
                ended = event is not None and event.finish_reason is FinishReason.ERROR and not event.tokens
                assert ended, f"L6: {row.seq_id} failed and its caller was not told"
                self.end(row.seq_id, "failed")
            elif step_failed:
                assert event is None, f"L8: {row.seq_id} got tokens from a failed step"
                self.retrying.add(row.seq_id)
            else:
                self.retrying.discard(row.seq_id)
                self.memory.ran(row)
                assert (event is not None) == bool(row.num_logits), "L8: an event without logits, or none with"
                if event is not None:
                    self.take(event)
        assert not events, f"L8: events for rows that did not run: {events}"

    def take(self, event) -> None:
        seq_id = event.seq_id
        request = self.account.live[seq_id[0]]
        self.tokens[seq_id] += [token.token_id for token in event.tokens]
        wanted = self.wanted[seq_id]
        got = self.tokens[seq_id]
        assert got == wanted[: len(got)], f"L8: {seq_id}: {got} is not how {wanted} begins"
        assert (event.finish_reason is not None) == (len(got) == len(wanted)), f"L8: {seq_id}: wrong end"
        if event.finish_reason is not None:
            reason = self.account.finish_reason(request, got)
            assert event.finish_reason is reason, f"L8: {seq_id}: wrong finish reason"
            self.end(seq_id, "finished")

    def end(self, seq_id: SeqId, fate: str) -> None:
        self.memory.forget(seq_id)
        self.retrying.discard(seq_id)
        self.account.end(seq_id, fate)

    def epilogue(self, step: int) -> None:
        """L11: nothing is left behind, and one more caller finds an empty engine."""
        self.world = self.account.world = replace(self.world, aborts={}, failures={}, copy_failures={}, copy_aborts={})
        probe = Request(request_id="probe", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1))
        self.add(probe, step * SECONDS_PER_STEP)
        self.turn(step)
        self.account.check_empty("probe")
