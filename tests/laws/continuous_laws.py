"""The laws of continuous batching, checked at every step of a world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from fakes import unbatched
from inflight.core.errors import StepFailed
from inflight.core.output import FinishReason, Idle, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.schedulers.admission import NUM_HEADROOM_TOKENS
from inflight.schedulers.config import ContinuousConfig
from laws.account import Account, require
from laws.worlds import World

SECONDS_PER_STEP = 0.5


@dataclass
class ContinuousReport:
    outputs: list[SchedulerOutput] = field(default_factory=list)
    preemptions: Counter[SeqId] = field(default_factory=Counter)
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
        require(step <= play.step_bound, "L5", f"not finished after {step} turns")
    play.epilogue(step)
    return play.report


class _Play:
    """One world being played, with its own account of what must be true."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.config, ContinuousConfig)
        self.world, self.config = world, world.config
        self.report = ContinuousReport()
        self.account = Account(world)
        self.scheduler = self.account.scheduler
        self.tokens: dict[SeqId, list[int]] = {}  # as the events gave them
        self.stored: dict[SeqId, int] = {}  # running rows: tokens whose KV is stored
        self.abort_asked: set[str] = set()
        self.last_admission = -100
        self.retrying: set[SeqId] = set()
        # A row runs at most (max_preemptions + 1) times over at most max_model_len steps, and a failed step costs
        # at most one more step for each of its rows.
        per_seq = self.config.max_model_len * (self.config.max_preemptions + 1)
        self.step_bound = 20 + world.num_seqs * per_seq + 2 * len(world.failures) * (1 + self.config.max_num_seqs)

    # -- one turn ------------------------------------------------------------------------------------------------

    def turn(self, step: int) -> None:
        now_s = step * SECONDS_PER_STEP
        for request in self.world.arrivals.get(step, ()):
            self.add(replace(request, arrival_s=now_s), now_s)
        self.abort(step, mid_step=False, now_s=now_s)
        output = self.scheduler.schedule("main", now_s)
        self.scheduler.check()
        if isinstance(output, Idle):
            require(not self.account.open, "L12", f"idle while {sorted(self.account.open)} could run")
            require(output.wake_at_s is None, "L12", "nothing will change by itself")
            self.abort(step, mid_step=True, now_s=now_s)
            return
        self.report.outputs.append(output)
        self.check_output(output)
        self.abort(step, mid_step=True, now_s=now_s, in_flight={row.seq_id for row in output.scheduled})
        self.scheduler.check()
        result: StepResult | StepFailed
        try:
            result = self.account.executor.execute(output)
        except StepFailed as failure:
            result = failure
        self.update(output, result, now_s + SECONDS_PER_STEP / 2)
        self.scheduler.check()
        num_needed = sum(map(self.world.num_held_for, self.stored.values()))
        self.account.check_books(num_needed, self.world.num_blocks if self.retrying else num_needed)

    def add(self, request: Request, now_s: float) -> None:
        choices = self.account.add(request, now_s)
        self.report.num_rejected += not choices
        self.tokens |= {seq_id: [] for seq_id in choices}

    def abort(self, step: int, mid_step: bool, now_s: float, in_flight: frozenset | set = frozenset()) -> None:
        for abort in self.world.aborts.get(step, ()):
            if abort.mid_step != mid_step:
                continue
            choices = self.account.abort(abort.request_id, now_s)
            self.report.num_aborted_in_flight += bool(choices & in_flight)
            self.abort_asked.add(abort.request_id)
            for seq_id in choices - in_flight:
                self.end(seq_id, "aborted")

    # -- the laws ------------------------------------------------------------------------------------------------

    def check_output(self, output: SchedulerOutput) -> None:
        config = self.config
        rows = output.scheduled
        require(bool(rows), "L12", "a step without rows")
        require(output.num_tokens <= config.max_num_batched_tokens, "L4", "token budget exceeded")
        require(len(rows) <= config.max_num_seqs, "L4", "seat budget exceeded")
        require(output.num_computed_tokens == output.num_tokens, "L4", "a pad or a dead row")
        scheduled = {row.seq_id for row in rows}
        require(len(scheduled) == len(rows), "L4", "a row twice in one step")
        require(not scheduled & set(output.preempted), "L4", "a row both scheduled and preempted")
        for seq_id in output.preempted:
            require(seq_id in self.stored, "L10", f"{seq_id} preempted but was not running")
            del self.stored[seq_id]
            self.retrying.discard(seq_id)
            self.report.preemptions[seq_id] += 1
            num = self.report.preemptions[seq_id]
            require(num <= config.max_preemptions, "L5", f"{seq_id} preempted {num} times")
        if output.preempted:
            too_soon = output.step - self.last_admission <= NUM_HEADROOM_TOKENS
            require(not too_soon, "L5", "an admission forced a preemption within two steps")
        admitted = scheduled - self.stored.keys()
        self.check_fairness(admitted)
        if admitted:
            self.last_admission = output.step
        self.account.check_tables(output)
        num_partial = 0
        for row in rows:
            start, end = row.start, row.start + len(row.token_ids)
            known = self.known_tokens(row.seq_id)
            require(start == self.stored.get(row.seq_id, 0), "L3", f"{row.seq_id} starts at {start}")
            require(list(row.token_ids) == known[start:end], "L3", f"{row.seq_id} runs other tokens than it has")
            require(bool(row.token_ids), "L3", "a row without tokens")
            require(len(row.block_table) * self.world.block_size >= end, "L3", f"{row.seq_id}: table too short")
            require(row.num_logits == (end == len(known)), "L3", f"{row.seq_id}: logits at the wrong place")
            num_partial += end < len(known)
            self.stored.setdefault(row.seq_id, 0)
        self.report.num_split_prompts += num_partial
        if self.retrying:
            require(len(rows) == 1 and scheduled <= self.retrying, "L12", "a failed row must be tried alone")
        else:
            require(scheduled == self.stored.keys(), "L12", "a running row was left out of a step")
            if num_partial and not output.preempted:
                full = output.num_tokens == config.max_num_batched_tokens
                require(full and config.enable_chunked_prefill, "L12", "a prompt was split without need")

    def known_tokens(self, seq_id: SeqId) -> list[int]:
        return [*self.account.live[seq_id[0]].prompt_token_ids, *self.tokens[seq_id]]

    def check_fairness(self, admitted: set[SeqId]) -> None:
        keys = self.account.keys
        waiting = self.account.open - self.stored.keys() - admitted
        for seq_id in admitted:
            for other in waiting:
                require(keys[seq_id] < keys[other], "L9", f"{seq_id} overtook {other}")

    def update(self, output: SchedulerOutput, result: StepResult | StepFailed, now_s: float) -> None:
        stops = self.account.stops_in(result) if isinstance(result, StepResult) else {}
        events = {event.seq_id: event for event in self.scheduler.update(output, result, stops, now_s)}
        step_failed = isinstance(result, StepFailed)
        self.report.num_failed_steps += step_failed
        blotted = set() if step_failed else {row.seq_id for row in result.failed}
        for row in output.scheduled:
            event = events.pop(row.seq_id, None)
            if row.seq_id[0] in self.abort_asked:
                require(event is None, "L11", f"{row.seq_id} was aborted and got an event")
                self.end(row.seq_id, "aborted")
            elif (step_failed and row.seq_id in self.retrying) or row.seq_id in blotted:
                ended = event is not None and event.finish_reason is FinishReason.ERROR and not event.tokens
                require(ended, "L6", f"{row.seq_id} failed and its caller was not told")
                self.end(row.seq_id, "failed")
            elif step_failed:
                require(event is None, "L8", f"{row.seq_id} got tokens from a failed step")
                self.retrying.add(row.seq_id)
            else:
                self.retrying.discard(row.seq_id)
                self.stored[row.seq_id] = row.start + len(row.token_ids)
                require((event is not None) == bool(row.num_logits), "L8", "an event without logits, or none with")
                if event is not None:
                    self.take(event)
        require(not events, "L8", f"events for rows that did not run: {events}")

    def take(self, event) -> None:
        seq_id = event.seq_id
        request = self.account.live[seq_id[0]]
        self.tokens[seq_id] += [token.token_id for token in event.tokens]
        wanted = unbatched(request, seq_id[1], self.config.max_model_len)
        got = self.tokens[seq_id]
        require(got == wanted[: len(got)], "L8", f"{seq_id}: {got} is not how {wanted} begins")
        require((event.finish_reason is not None) == (len(got) == len(wanted)), "L8", f"{seq_id}: wrong end")
        if event.finish_reason is not None:
            reason = self.account.finish_reason(request, got)
            require(event.finish_reason is reason, "L8", f"{seq_id}: wrong finish reason")
            self.end(seq_id, "finished")

    def end(self, seq_id: SeqId, fate: str) -> None:
        self.stored.pop(seq_id, None)
        self.retrying.discard(seq_id)
        self.account.end(seq_id, fate)

    def epilogue(self, step: int) -> None:
        """L11: nothing is left behind, and one more caller finds an empty engine."""
        self.world = self.account.world = replace(self.world, aborts={}, failures={})
        probe = Request(request_id="probe", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1))
        self.add(probe, step * SECONDS_PER_STEP)
        self.turn(step)
        self.account.check_empty("probe")
