"""Random worlds: a scheduler, a PaperExecutor, and callers who come, give up and meet failing steps.

``run_world`` plays one world to its end and checks every law after every step. Run as a script it plays many and
exits with 1 at the first broken law; the mutants are caught that way.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass, field, replace

from fakes import Failure, PaperExecutor, PaperText, ends_with, unbatched
from inflight.core.errors import Reason, Rejected, StepFailed
from inflight.core.lifecycle import Status, check_move
from inflight.core.output import FinishReason, Idle, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.schedulers.admission import NUM_HEADROOM_TOKENS
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler

EOS = 1
SECONDS_PER_STEP = 0.5


class BrokenLaw(AssertionError):
    """A law does not hold in a world."""


@dataclass(frozen=True)
class Abort:
    request_id: str
    mid_step: bool  # between schedule and update


@dataclass
class World:
    num_blocks: int
    block_size: int
    config: ContinuousConfig
    arrivals: dict[int, list[Request]]  # by step
    aborts: dict[int, list[Abort]]
    failures: dict[int, Failure]

    @property
    def last_event(self) -> int:
        return max([0, *self.arrivals, *self.aborts, *self.failures])


@dataclass
class Report:
    outputs: list[SchedulerOutput] = field(default_factory=list)
    preemptions: Counter[SeqId] = field(default_factory=Counter)
    num_aborted_in_flight: int = 0
    num_failed_steps: int = 0
    num_rejected: int = 0
    num_split_prompts: int = 0


def random_world(rng: random.Random) -> World:
    num_blocks = rng.randint(4, 14)
    block_size = rng.randint(1, 4)
    capacity = num_blocks * block_size
    max_model_len = rng.choice([capacity, max(2, capacity * 2 // 3)])
    chunked = rng.random() < 0.8
    max_num_seqs = rng.randint(2, 6)
    config = ContinuousConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, max_num_seqs + 8) if chunked else max(max_model_len, 6),
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        priority_ageing_s=rng.choice([0.5, 4.0, 1000.0]),
        max_preemptions=rng.choice([0, 1, 1, 2, 2, 4, 4, 4]),
        max_num_waiting_seqs=rng.choice([None, None, None, 6]),
    )
    num_requests = rng.randint(3, 10)
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[Abort]] = {}
    for index in range(num_requests):
        step = rng.choice([0, 0, rng.randint(0, 12)])
        arrivals.setdefault(step, []).append(random_request(rng, f"r{index}", max_model_len))
        if rng.random() < 0.25:
            aborts.setdefault(step + rng.randint(0, 8), []).append(Abort(f"r{index}", rng.random() < 0.7))
    failures = {
        rng.randint(0, 15): rng.choice([Failure(after_rows=rng.randint(0, 2)), Failure(row=rng.randint(0, 2))])
        for _ in range(rng.choice([0, 0, 1, 3]))
    }
    return World(num_blocks, block_size, config, arrivals, aborts, failures)


def random_request(rng: random.Random, request_id: str, max_model_len: int) -> Request:
    # Mostly short prompts and long outputs: rows that fit when they enter and grow into each other's memory.
    num_prompt = rng.choice([rng.randint(1, 4)] * 3 + [rng.randint(1, max_model_len + 1)])
    room = max(1, max_model_len - num_prompt)
    max_tokens = rng.choice([None, rng.randint(1, 4), rng.randint(1, room), room, room + 1])
    sampling = SamplingParams(
        n=rng.choice([1, 1, 1, 2]),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens or 3) if rng.random() < 0.3 else 0,
        ignore_eos=rng.random() < 0.8,
        stop=("0010",) if rng.random() < 0.2 else (),
        stop_token_ids=(0,) if rng.random() < 0.1 else (),
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(rng.randint(0, 1) for _ in range(num_prompt)),
        sampling=sampling,
        eos_token_ids=(EOS,),
        priority=rng.randint(-1, 2),
    )


def run_world(world: World) -> Report:
    play = _Play(world)
    step = 0
    while step <= world.last_event or play.live:
        play.turn(step)
        step += 1
        play.require(step <= play.step_bound, "L5", f"not finished after {step} turns")
    play.epilogue(step)
    return play.report


class _Play:
    """One world being played, with its own account of what must be true."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.report = Report()
        self.scheduler = ContinuousScheduler(world.config, world.num_blocks, world.block_size)
        self.executor = PaperExecutor(
            world.num_blocks, world.block_size, failure=lambda output: self.world.failures.get(output.step)
        )
        self.live: dict[str, Request] = {}
        self.open: set[SeqId] = set()
        self.texts: dict[SeqId, PaperText] = {}
        self.tokens: dict[SeqId, list[int]] = {}  # as the events gave them
        self.stored: dict[SeqId, int] = {}  # running rows: tokens whose KV is stored
        self.keys: dict[SeqId, tuple[float, int]] = {}
        self.status: dict[SeqId, Status] = {}
        self.abort_asked: set[str] = set()
        self.fates: Counter[str] = Counter()
        self.fate_of: dict[str, set[str]] = {}
        self.num_sequences = 0
        self.last_admission = -100
        self.retrying: set[SeqId] = set()
        everyone = [request for requests in world.arrivals.values() for request in requests]
        num_seqs = sum(request.sampling.n for request in everyone)
        # A row runs at most (max_preemptions + 1) times over at most max_model_len steps, and a failed step costs
        # at most one more step for each of its rows.
        per_seq = world.config.max_model_len * (world.config.max_preemptions + 1)
        self.step_bound = 20 + num_seqs * per_seq + 2 * len(world.failures) * (1 + world.config.max_num_seqs)

    def require(self, holds: bool, law: str, message: str) -> None:
        if not holds:
            raise BrokenLaw(f"{law}: {message}")

    # -- one turn ------------------------------------------------------------------------------------------------

    def turn(self, step: int) -> None:
        now_s = step * SECONDS_PER_STEP
        for request in self.world.arrivals.get(step, ()):
            self.add(request, now_s)
        self.abort(step, mid_step=False, now_s=now_s)
        output = self.scheduler.schedule("main", now_s)
        self.scheduler.check()
        if isinstance(output, Idle):
            self.require(not self.open, "L12", f"idle while {sorted(self.open)} could run")
            self.abort(step, mid_step=True, now_s=now_s)
            return
        self.report.outputs.append(output)
        self.check_output(output)
        self.abort(step, mid_step=True, now_s=now_s, in_flight={row.seq_id for row in output.scheduled})
        self.scheduler.check()
        result: StepResult | StepFailed
        try:
            result = self.executor.execute(output)
        except StepFailed as failure:
            result = failure
        self.update(output, result, now_s + SECONDS_PER_STEP / 2)
        self.scheduler.check()
        self.check_books()

    def add(self, request: Request, now_s: float) -> None:
        limit = self.world.config.max_model_len
        too_long = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1) > limit
        stats = self.scheduler.stats()
        try:
            self.scheduler.add(request, now_s)
        except Rejected as rejected:
            full = self.world.config.max_num_waiting_seqs
            expected = too_long or (full is not None and stats.num_waiting_seqs + request.sampling.n > full)
            self.require(expected, "L5", f"{request.request_id} was refused without need: {rejected}")
            self.require(too_long == (rejected.reason is Reason.CONTEXT_LENGTH), "L5", "refused for another reason")
            self.fates["rejected"] += 1
            self.report.num_rejected += 1
            return
        self.require(not too_long, "L5", f"{request.request_id} can never finish and was accepted")
        self.live[request.request_id] = request
        self.fate_of[request.request_id] = set()
        for choice in range(request.sampling.n):
            seq_id = (request.request_id, choice)
            self.open.add(seq_id)
            self.status[seq_id] = Status.WAITING
            self.texts[seq_id] = PaperText(request.sampling)
            self.tokens[seq_id] = []
            config = self.world.config
            # Written as classes that age, not as the scheduler's fixed key.
            aged = request.priority * config.priority_ageing_s + now_s if config.scheduling_policy == "priority" else 0
            self.keys[seq_id] = (aged, self.num_sequences)
            self.num_sequences += 1

    def abort(self, step: int, mid_step: bool, now_s: float, in_flight: frozenset | set = frozenset()) -> None:
        for abort in self.world.aborts.get(step, ()):
            if abort.mid_step != mid_step:
                continue
            choices = {seq_id for seq_id in self.open if seq_id[0] == abort.request_id}
            self.scheduler.abort(abort.request_id, now_s)
            self.scheduler.abort(abort.request_id, now_s)  # idempotent
            self.report.num_aborted_in_flight += bool(choices & in_flight)
            self.abort_asked.add(abort.request_id)
            for seq_id in choices - in_flight:
                self.end(seq_id, "aborted")

    # -- the laws ------------------------------------------------------------------------------------------------

    def check_output(self, output: SchedulerOutput) -> None:
        config = self.world.config
        rows = output.scheduled
        self.require(bool(rows), "L12", "a step without rows")
        self.require(output.num_tokens <= config.max_num_batched_tokens, "L4", "token budget exceeded")
        self.require(len(rows) <= config.max_num_seqs, "L4", "seat budget exceeded")
        scheduled = {row.seq_id for row in rows}
        self.require(len(scheduled) == len(rows), "L4", "a row twice in one step")
        self.require(not scheduled & set(output.preempted), "L4", "a row both scheduled and preempted")
        for seq_id in output.preempted:
            self.require(seq_id in self.stored, "L10", f"{seq_id} preempted but was not running")
            del self.stored[seq_id]
            self.retrying.discard(seq_id)
            self.report.preemptions[seq_id] += 1
            num = self.report.preemptions[seq_id]
            self.require(num <= config.max_preemptions, "L5", f"{seq_id} preempted {num} times")
        if output.preempted:
            too_soon = output.step - self.last_admission <= NUM_HEADROOM_TOKENS
            self.require(not too_soon, "L5", "an admission forced a preemption within two steps")
        admitted = scheduled - self.stored.keys()
        self.check_fairness(admitted)
        if admitted:
            self.last_admission = output.step
        blocks: set[int] = set()
        num_partial = 0
        for row in rows:
            start, end = row.start, row.start + len(row.token_ids)
            known = self.known_tokens(row.seq_id)
            self.require(start == self.stored.get(row.seq_id, 0), "L3", f"{row.seq_id} starts at {start}")
            self.require(list(row.token_ids) == known[start:end], "L3", f"{row.seq_id} runs other tokens than it has")
            self.require(bool(row.token_ids), "L3", "a row without tokens")
            self.require(len(row.block_table) * self.world.block_size >= end, "L3", f"{row.seq_id}: table too short")
            self.require(row.num_logits == (end == len(known)), "L3", f"{row.seq_id}: logits at the wrong place")
            self.require(not blocks & set(row.block_table), "L2", f"{row.seq_id} shares a block")
            self.require(len(set(row.block_table)) == len(row.block_table), "L2", "a block twice in one table")
            blocks |= set(row.block_table)
            num_partial += end < len(known)
            self.stored.setdefault(row.seq_id, 0)
        self.report.num_split_prompts += num_partial
        if self.retrying:
            self.require(len(rows) == 1 and scheduled <= self.retrying, "L12", "a failed row must be tried alone")
        else:
            self.require(scheduled == self.stored.keys(), "L12", "a running row was left out of a step")
            if num_partial and not output.preempted:
                full = output.num_tokens == config.max_num_batched_tokens
                self.require(full and config.enable_chunked_prefill, "L12", "a prompt was split without need")

    def known_tokens(self, seq_id: SeqId) -> list[int]:
        return [*self.live[seq_id[0]].prompt_token_ids, *self.tokens[seq_id]]

    def check_fairness(self, admitted: set[SeqId]) -> None:
        waiting = self.open - self.stored.keys() - admitted
        for seq_id in admitted:
            for other in waiting:
                self.require(self.keys[seq_id] < self.keys[other], "L9", f"{seq_id} overtook {other}")

    def update(self, output: SchedulerOutput, result: StepResult | StepFailed, now_s: float) -> None:
        stops = {}
        for row in result.sampled if isinstance(result, StepResult) else ():
            if stop := self.texts[row.seq_id].push([token.token_id for token in row.tokens]):
                stops[row.seq_id] = stop
        events = {event.seq_id: event for event in self.scheduler.update(output, result, stops, now_s)}
        step_failed = isinstance(result, StepFailed)
        self.report.num_failed_steps += step_failed
        blotted = set() if step_failed else {row.seq_id for row in result.failed}
        for row in output.scheduled:
            event = events.pop(row.seq_id, None)
            if row.seq_id[0] in self.abort_asked:
                self.require(event is None, "L11", f"{row.seq_id} was aborted and got an event")
                self.end(row.seq_id, "aborted")
            elif (step_failed and row.seq_id in self.retrying) or row.seq_id in blotted:
                ended = event is not None and event.finish_reason is FinishReason.ERROR and not event.tokens
                self.require(ended, "L6", f"{row.seq_id} failed and its caller was not told")
                self.end(row.seq_id, "failed")
            elif step_failed:
                self.require(event is None, "L8", f"{row.seq_id} got tokens from a failed step")
                self.retrying.add(row.seq_id)
            else:
                self.retrying.discard(row.seq_id)
                self.stored[row.seq_id] = row.start + len(row.token_ids)
                self.require((event is not None) == bool(row.num_logits), "L8", "an event without logits, or none with")
                if event is not None:
                    self.take(event)
        self.require(not events, "L8", f"events for rows that did not run: {events}")

    def take(self, event) -> None:
        seq_id = event.seq_id
        request = self.live[seq_id[0]]
        self.tokens[seq_id] += [token.token_id for token in event.tokens]
        wanted = unbatched(request, seq_id[1], self.world.config.max_model_len)
        got = self.tokens[seq_id]
        self.require(got == wanted[: len(got)], "L8", f"{seq_id}: {got} is not how {wanted} begins")
        self.require((event.finish_reason is not None) == (len(got) == len(wanted)), "L8", f"{seq_id}: wrong end")
        if event.finish_reason is not None:
            at_end = got[-1] in request.eos_token_ids and not request.sampling.ignore_eos
            at_stop = got[-1] in request.sampling.stop_token_ids
            at_stop = at_stop or any(ends_with(got, stop) for stop in request.sampling.stop)
            stopped = (at_end or at_stop) and len(got) >= request.sampling.min_tokens
            self.require((event.finish_reason is FinishReason.STOP) == stopped, "L8", f"{seq_id}: wrong finish reason")
            self.end(seq_id, "finished")

    def end(self, seq_id: SeqId, fate: str) -> None:
        request_id = seq_id[0]
        self.open.discard(seq_id)
        self.stored.pop(seq_id, None)
        self.retrying.discard(seq_id)
        self.fate_of[request_id].add(fate)
        if not any(other[0] == request_id for other in self.open):
            fates = self.fate_of[request_id]
            self.fates[next(fate for fate in ("aborted", "failed", "finished") if fate in fates)] += 1
            del self.live[request_id]

    def check_books(self) -> None:
        stats = self.scheduler.stats()
        for fate in ("finished", "aborted", "rejected", "failed"):
            counted = getattr(stats, fate)
            self.require(counted == self.fates[fate], "L6", f"{counted} {fate}, should be {self.fates[fate]}")
        self.require(stats.live == len(self.live), "L6", f"{stats.live} live, should be {len(self.live)}")
        num_ended = stats.finished + stats.aborted + stats.rejected + stats.failed
        self.require(stats.received == num_ended + stats.live, "L6", "requests are not conserved")
        size = self.world.block_size
        num_needed = sum(-(-stored // size) for stored in self.stored.values())
        num_held = stats.num_blocks - stats.num_free_blocks
        self.require(num_needed <= num_held, "L1", f"{num_held} blocks held, {num_needed} needed")
        if not self.retrying:
            self.require(num_held == num_needed, "L1", f"{num_held} blocks held after a step, {num_needed} needed")
        for move in self.scheduler.transitions():
            self.require(self.status[move.seq_id] is move.before, "L10", f"{move} does not follow")
            check_move(move.seq_id, move.before, move.after)
            self.status[move.seq_id] = move.after

    def epilogue(self, step: int) -> None:
        """L11: nothing is left behind, and one more caller finds an empty engine."""
        self.world = replace(self.world, aborts={}, failures={})
        probe = Request(request_id="probe", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1))
        self.add(probe, step * SECONDS_PER_STEP)
        self.turn(step)
        stats = self.scheduler.stats()
        self.require(self.executor.known == {("probe", 0)}, "L11", f"the executor remembers {self.executor.known}")
        self.require(stats.num_free_blocks == stats.num_blocks, "L11", "blocks are still held")
        self.require(stats.num_running_seqs == stats.num_waiting_seqs == stats.live == 0, "L11", "rows are left")


def main(num_worlds: int) -> None:
    for seed in range(num_worlds):
        try:
            run_world(random_world(random.Random(seed)))
        except Exception as error:
            print(f"caught in world {seed}: {type(error).__name__}: {error}")
            sys.exit(1)
    print(f"{num_worlds} worlds, no broken law")


if __name__ == "__main__":
    main(int(sys.argv[1]))
