"""The laws that hold of every scheduler, and the plain account of a world that they are checked against.

A law is an ``assert`` whose message begins with its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fakes import Failure, PaperExecutor, PaperText, ends_with
from inflight.core.errors import Reason, Rejected
from inflight.core.lifecycle import Status, check_move
from inflight.core.output import FinishReason, SchedulerOutput, StepResult, Stop
from inflight.core.request import Request, SeqId
from inflight.core.scheduler import Scheduler
from inflight.schedulers.registry import make_scheduler
from laws.world import World


class Account:
    """A scheduler and a PaperExecutor, and who is there: requests, choices, statuses, fates."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler: Scheduler = make_scheduler(
            world.config, world.num_blocks, world.block_size, world.num_host_blocks, hash_key=b"paper"
        )
        self.executor = PaperExecutor(
            world.num_blocks,
            world.block_size,
            world.vocab_size,
            failure=self.failure,
            num_host_blocks=world.num_host_blocks,
            cost=lambda output: world.costs[output.step % len(world.costs)],
        )
        self.live: dict[str, Request] = {}
        self.open: set[SeqId] = set()
        self.texts: dict[SeqId, PaperText] = {}
        self.keys: dict[SeqId, tuple[float, int]] = {}
        self.status: dict[SeqId, Status] = {}
        self.fates: Counter[str] = Counter()
        self.fate_of: dict[str, set[str]] = {}
        self.num_sequences = 0
        self.num_copying_steps = 0

    def failure(self, output: SchedulerOutput) -> Failure | None:
        """How a step is going to fail, if it is."""
        failure = self.world.failures.get(output.step)
        if output.copies:
            self.num_copying_steps += 1
            failure = self.world.copy_failures.get(self.num_copying_steps, failure)
        return failure

    def add(self, request: Request, now_s: float) -> tuple[SeqId, ...]:
        """Hand a request over; its choices if it was accepted."""
        too_long = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1) > self.world.max_num_tokens
        stats = self.scheduler.stats()
        refusal: Rejected | None = None
        try:
            self.scheduler.add(request, now_s)
        except Rejected as rejected:
            refusal = rejected
        if refusal is not None:
            full = self.world.config.max_num_waiting_seqs
            expected = too_long or (full is not None and stats.num_waiting_seqs + request.sampling.n > full)
            assert expected, f"L5: {request.request_id} was refused without need: {refusal}"
            assert too_long == (refusal.reason is Reason.CONTEXT_LENGTH), "L5: refused for another reason"
            self.fates["rejected"] += 1
            return ()
        assert not too_long, f"L5: {request.request_id} can never finish and was accepted"
        self.live[request.request_id] = request
        self.fate_of[request.request_id] = set()
        choices = tuple((request.request_id, choice) for choice in range(request.sampling.n))
        for seq_id in choices:
            self.open.add(seq_id)
            self.status[seq_id] = Status.WAITING
            self.texts[seq_id] = PaperText(request.sampling)
            config = self.world.config
            # Written as classes that age, not as the scheduler's fixed key.
            aged = request.priority * config.priority_ageing_s + now_s if config.scheduling_policy == "priority" else 0
            self.keys[seq_id] = (aged, self.num_sequences)
            self.num_sequences += 1
        return choices

    def abort(self, request_id: str, now_s: float) -> set[SeqId]:
        """Give a request up, twice; its choices that had not ended."""
        choices = {seq_id for seq_id in self.open if seq_id[0] == request_id}
        self.scheduler.abort(request_id, now_s)
        self.scheduler.abort(request_id, now_s)  # idempotent
        return choices

    def stops_in(self, result: StepResult) -> dict[SeqId, Stop]:
        stops = {}
        for row in result.sampled:
            if stop := self.texts[row.seq_id].push([token.token_id for token in row.tokens]):
                stops[row.seq_id] = stop
        return stops

    def finish_reason(self, request: Request, output: list[int]) -> FinishReason:
        """Why a choice ended that ended with this output."""
        at_end = output[-1] in request.eos_token_ids and not request.sampling.ignore_eos
        at_stop = output[-1] in request.sampling.stop_token_ids
        at_stop = at_stop or any(ends_with(output, stop) for stop in request.sampling.stop)
        stopped = (at_end or at_stop) and len(output) >= request.sampling.min_tokens
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    def end(self, seq_id: SeqId, fate: str) -> None:
        request_id = seq_id[0]
        self.open.discard(seq_id)
        self.fate_of[request_id].add(fate)
        if not any(other[0] == request_id for other in self.open):
            fates = self.fate_of[request_id]
            self.fates[next(fate for fate in ("aborted", "failed", "finished") if fate in fates)] += 1
            del self.live[request_id]

    def check_tables(self, output: SchedulerOutput, shared: Collection[int] = ()) -> None:
        """L2: no block is in two places, but ``shared`` ones; a contiguous row has one piece; scratch is nobody's."""
        world = self.world
        blocks: set[int] = set()
        for row in output.scheduled:
            table = row.block_table
            assert blocks & set(table) <= set(shared), f"L2: {row.seq_id} shares a block"
            assert len(set(table)) == len(table), "L2: a block twice in one table"
            if world.config.kv_allocator == "contiguous":
                whole = tuple(range(table[0], table[0] + world.blocks_of(world.config.max_model_len)))
                assert table == whole, f"L2: {row.seq_id}: {table} is not one piece"
            blocks |= set(table)
        scratch = set(range(world.num_blocks - world.num_scratch, world.num_blocks))
        assert not blocks & scratch, f"L2: scratch blocks in a table: {blocks & scratch}"
        assert set(output.scratch_table) <= scratch, f"L2: {output.scratch_table} are not all scratch blocks"
        assert len(set(output.scratch_table)) == len(output.scratch_table), "L2: a scratch block twice"

    def check_books(self, num_needed: int, num_allowed: int) -> None:
        """L1, L6, L10. The blocks that are held are at least ``num_needed`` and at most ``num_allowed``."""
        stats = self.scheduler.stats()
        for fate in ("finished", "aborted", "rejected", "failed"):
            counted = getattr(stats, fate)
            assert counted == self.fates[fate], f"L6: {counted} {fate}, should be {self.fates[fate]}"
        assert stats.live == len(self.live), f"L6: {stats.live} live, should be {len(self.live)}"
        num_ended = stats.finished + stats.aborted + stats.rejected + stats.failed
        assert stats.received == num_ended + stats.live, "L6: requests are not conserved"
        num_held = stats.num_blocks - stats.num_free_blocks
        assert num_needed <= num_held <= num_allowed, f"L1: {num_held} blocks held, {num_needed} needed"
        for move in self.scheduler.transitions():
            assert self.status[move.seq_id] is move.before, f"L10: {move} does not follow"
            check_move(move.seq_id, move.before, move.after)
            self.status[move.seq_id] = move.after

    def check_empty(self, probe: str) -> None:
        """L11: nothing is left behind once ``probe``, the last caller, has been served."""
        stats = self.scheduler.stats()
        assert self.executor.known == {(probe, 0)}, f"L11: the executor remembers {self.executor.known}"
        assert stats.num_free_blocks == stats.num_blocks, "L11: blocks are still held"
        assert stats.num_free_host_blocks == stats.num_host_blocks, "L11: host blocks are still held"
        assert stats.num_running_seqs == stats.num_waiting_seqs == stats.live == 0, "L11: rows are left"
