"""The plain account of the host tier: who lies there, who had to, and what steps must copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from inflight.core.output import BlockCopy, ScheduledSequence, SchedulerOutput
from inflight.core.request import SeqId
from laws.world import World


@dataclass
class Stored:
    """What a sequence has in the host tier, and the copies with which it is coming back, if it is."""

    blocks: list[int]
    num_tokens: int
    copies: tuple[BlockCopy, ...] = ()


class HostAccount:
    def __init__(self, world: World, counts: Counter[str]) -> None:
        self.world, self.counts = world, counts
        self.mode = world.config.preemption_mode
        self.num_blocks = world.num_host_blocks if world.config.kv_allocator == "paged" else 0
        self.stored: dict[SeqId, Stored] = {}

    @property
    def held(self) -> set[int]:
        return {block for stored in self.stored.values() for block in stored.blocks}

    def preempt(
        self, seq_id: SeqId, num_tokens: int, table: list[int], swapped: bool, out: Iterator[BlockCopy]
    ) -> None:
        """A row has to go; ``out`` are the copies that nobody has claimed yet."""
        num = self.world.blocks_of(num_tokens)
        room = self.num_blocks - len(self.held) >= num
        assert not swapped or (room and self.mode != "recompute"), f"L3: {seq_id} cannot have been swapped out"
        assert swapped or not room or self.mode != "swap", f"L3: {seq_id} lost its KV and there was room for it"
        self.counts[("swapped out" if swapped else "recomputed") + " by auto" * (self.mode == "auto" and room)] += 1
        if swapped:
            copies = [copy for _, copy in zip(range(num), out, strict=False)]
            assert [copy.block for copy in copies] == table[:num], f"L3: {seq_id} is swapped out by {copies}"
            targets = [copy.host_block for copy in copies]
            free = len(set(targets) - self.held) == num
            assert free, f"L2: {seq_id} goes to host blocks that are not free: {copies}"
            self.stored[seq_id] = Stored(targets, num_tokens)
            self.counts["blocks swapped out"] += num

    def num_tokens(self, seq_id: SeqId) -> int:
        """Tokens whose KV a sequence has here."""
        return self.stored[seq_id].num_tokens if seq_id in self.stored else 0

    def come_back(self, row: ScheduledSequence, num_found: int) -> None:
        """A row enters, whose first blocks hold what they must already."""
        if stored := self.stored.get(row.seq_id):
            pairs = list(zip(row.block_table, stored.blocks, strict=False))[num_found:]
            stored.copies = tuple(BlockCopy(False, *pair) for pair in pairs)
            self.counts["swapped in"] += 1
            self.counts["blocks swapped in"] += len(pairs)

    def coming_in(self, output: SchedulerOutput) -> list[SeqId]:
        """The rows of a step that are copied in with it, for the first time or again."""
        return [row.seq_id for row in output.scheduled if row.seq_id in self.stored]

    def check_incoming(self, output: SchedulerOutput) -> None:
        told = sorted(copy for copy in output.copies if not copy.to_host)
        wanted = sorted(copy for seq_id in self.coming_in(output) for copy in self.stored[seq_id].copies)
        assert told == wanted, f"L3: copies {told} come in, should be {wanted}"

    def lost(self, output: SchedulerOutput) -> None:
        """The step failed: what it should have swapped out is computed again."""
        self.counts["failed steps that copied"] += bool(output.copies)
        for seq_id in output.swapped_out:
            self.counts["swapped out in a failed step"] += self.stored.pop(seq_id, None) is not None

    def forget(self, seq_id: SeqId) -> None:
        """A sequence has come back, or has ended."""
        self.stored.pop(seq_id, None)
