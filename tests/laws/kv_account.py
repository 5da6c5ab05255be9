"""The plain account of KV memory: whose each block is, what can be found in it, and what lies in the host tier.

It is kept from what steps say and what became of them, and knows beforehand what a step must say of memory: which
beginnings are found, what is copied, which blocks may be given up.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Protocol

from inflight.core.output import ScheduledSequence, SchedulerOutput, SchedulerStats
from inflight.core.request import SeqId
from laws.admission_law import AdmissionLaw, Size
from laws.host_account import HostAccount
from laws.world import World

Beginning = tuple[str, tuple[int, ...]]  # of a sequence: its salt, and all its tokens up to a block's end


def weak_digest(beginning: Beginning, num_digests: int) -> bytes:
    return bytes([zlib.crc32(repr(beginning).encode()) % num_digests])


class Sequences(Protocol):
    """Who is there."""

    def known_tokens(self, seq_id: SeqId) -> list[int]: ...

    def max_num_tokens(self, seq_id: SeqId) -> int: ...

    def salt(self, seq_id: SeqId) -> str: ...


class KVAccount:
    def __init__(self, world: World, sequences: Sequences) -> None:
        self.world, self.config, self.sequences = world, world.config, sequences
        self.can_share = (
            self.config.kv_allocator == "paged"
            and self.config.enable_prefix_caching
            and self.config.prefix_cache != "none"
        )
        self.tables: dict[SeqId, list[int]] = {}  # of running rows
        self.stored: dict[SeqId, int] = {}  # of running rows: tokens whose KV is stored
        self.num_cached_tokens: dict[SeqId, int] = {}  # as a sequence first entered
        self.holders: Counter[int] = Counter()
        self.findable: dict[Beginning, int] = {}
        self.beginnings: dict[int, Beginning] = {}  # of the findable blocks
        self.released_at: dict[int, int] = {}  # findable blocks that nobody holds
        self.now = 0  # counts the moments at which blocks may be released
        self.counts: Counter[str] = Counter()
        self.host = HostAccount(world, self.counts)
        self.admission = AdmissionLaw(world)

    def collides(self, beginning: Beginning) -> bool:
        """Whether something else that can be found has the same digest."""
        few = self.world.num_digests
        return few is not None and any(weak_digest(o, few) == weak_digest(beginning, few) for o in self.findable)

    def num_sharable(self, num_tokens: int) -> int:
        """Of the tokens of a sequence, those in full blocks that it may find, the last token excepted: it must run."""
        return (num_tokens - 1) // self.world.block_size * self.world.block_size if self.can_share else 0

    def beginning(self, seq_id: SeqId, num_blocks: int) -> Beginning:
        return self.sequences.salt(seq_id), tuple(
            self.sequences.known_tokens(seq_id)[: num_blocks * self.world.block_size]
        )

    # -- a step is told ------------------------------------------------------------------------------------------

    def begin(self, output: SchedulerOutput, entering: set[SeqId]) -> None:
        self.now += 1
        outgoing = (copy for copy in output.copies if copy.to_host)
        for seq_id in output.preempted:
            assert self.config.admission != "reserve-all", f"L5: {seq_id} was preempted, all it needs was reserved"
            self.admission.on_preemption()
            swapped = seq_id in output.swapped_out
            self.host.preempt(seq_id, self.stored[seq_id], self.tables[seq_id], swapped, outgoing)
            self.release(seq_id)
        assert set(output.swapped_out) <= set(output.preempted), "L3: swapped out but not preempted"
        assert next(outgoing, None) is None, "L2: a block is copied out for nobody"
        evicted: list[tuple[int, int]] = []
        for row in output.scheduled:
            if row.seq_id in entering:
                self.enter(row)
            assert row.start == self.stored[row.seq_id], f"L3: {row.seq_id} starts at {row.start}"
            evicted += self.grow(row)
        self.host.check_incoming(output)
        self.check_evictions(evicted, bool(output.preempted))
        self.check_writes(output)
        self.counts["evictions"] += len(evicted)

    def enter(self, row: ScheduledSequence) -> None:
        """A row starts behind the longest beginning that can be found, or where its KV in the host tier ends."""
        seq_id, size = row.seq_id, self.world.block_size
        found: list[int] = []
        known = self.sequences.known_tokens(seq_id)
        limit = self.num_sharable(len(known)) // size
        while len(found) < limit and (block := self.findable.get(self.beginning(seq_id, len(found) + 1))) is not None:
            found.append(block)
        start = max(len(found) * size, self.host.num_tokens(seq_id))
        assert row.start == start, f"L3: {seq_id} enters at {row.start}, {start} can be reused"
        assert list(row.block_table[: len(found)]) == found, f"L2: {seq_id}: {found} hold how it begins"
        self.counts["hits"] += bool(found)
        self.counts["hits on blocks that others hold"] += any(self.holders[block] for block in found)
        self.counts["hits of all but the last block"] += self.beginning(seq_id, limit + 1) in self.findable
        if self.tables:
            self.check_admission(seq_id, sum(self.holders[block] > 0 for block in found))
        self.tables[seq_id], self.stored[seq_id] = found, start
        for block in found:
            self.hold(block)
        self.host.come_back(row, len(found))
        if seq_id not in self.num_cached_tokens:
            self.num_cached_tokens[seq_id] = start
            self.counts["tokens found"] += start
            self.counts["tokens looked up"] += len(known) if self.can_share else 0

    def check_admission(self, newcomer: SeqId, num_shared: int) -> None:
        limit, known = self.sequences.max_num_tokens, self.sequences.known_tokens
        sizes = {seq_id: Size(len(known(seq_id)), limit(seq_id)) for seq_id in (*self.tables, newcomer)}
        self.admission.see(self.num_held_blocks, len(self.tables))
        self.admission.check(newcomer, sizes, self.num_held_blocks, num_shared)

    def grow(self, row: ScheduledSequence) -> list[tuple[int, int]]:
        """A table keeps what it has, and takes blocks that nobody holds; those given up for it, and since when free."""
        table, end = self.tables[row.seq_id], row.start + len(row.token_ids)
        num = max(len(table), self.world.num_held_for(end))
        assert list(row.block_table[: len(table)]) == table, f"L3: {row.seq_id}: {table} became {row.block_table}"
        assert len(row.block_table) == num, f"L3: {row.seq_id}: {len(row.block_table)} blocks, {num} needed"
        evicted = []
        for block in row.block_table[len(table) :]:
            assert not self.holders[block], f"L2: {row.seq_id} takes block {block}, which others hold"
            if block in self.beginnings:
                salt, tokens = beginning = self.beginnings.pop(block)
                del self.findable[beginning]
                evicted.append((block, self.released_at.pop(block)))
                next_end = len(tokens) + self.world.block_size
                after = [one for one in self.findable if one[0] == salt and len(one[1]) == next_end]
                orphans = [one for one in after if one[1][: len(tokens)] == tokens]
                assert not orphans, f"L3: block {block} was given up before those that follow on it"
            self.hold(block)
            table.append(block)
        return evicted

    def check_evictions(self, evicted: list[tuple[int, int]], others_left: bool) -> None:
        for block, since in evicted:
            older = [one for one, moment in self.released_at.items() if moment < since]
            assert not older, f"L1: block {block} was given up, {older} have not been used for longer"
        assert not evicted or others_left or not self.num_empty_blocks, "L1: given up though blocks are empty"

    def check_writes(self, output: SchedulerOutput) -> None:
        """L2: what is written belongs to one table, and what can be found is never written."""
        for row in output.scheduled:
            first, end = row.start // self.world.block_size, self.world.blocks_of(row.start + len(row.token_ids))
            for block in row.block_table[first:end]:
                alone = self.holders[block] == 1 and block not in self.beginnings
                assert alone, f"L2: {row.seq_id} writes block {block}, which is not its own"

    # -- what became of it ---------------------------------------------------------------------------------------

    def ran(self, row: ScheduledSequence) -> None:
        """A row's step has ended well: its full blocks can be found, and what was copied in is here."""
        seq_id = row.seq_id
        self.stored[seq_id] = row.start + len(row.token_ids)
        self.host.forget(seq_id)
        if not self.can_share:
            return
        table = self.tables[seq_id]
        for index in range(self.stored[seq_id] // self.world.block_size):
            beginning, own = self.beginning(seq_id, index + 1), table[index]
            known = self.findable.get(beginning)
            if known is None:
                if self.collides(beginning):
                    self.counts["collisions"] += 1
                    break  # other tokens have that digest: this block, and what follows on it, cannot be known
                self.findable[beginning] = own
                self.beginnings[own] = beginning
            elif known != own:
                self.counts["merges"] += 1
                self.hold(known)
                table[index] = known
                self.drop(own)

    def release(self, seq_id: SeqId) -> None:
        """A row is preempted, or has ended."""
        for block in self.tables.pop(seq_id, ()):
            self.drop(block)
        self.stored.pop(seq_id, None)

    def forget(self, seq_id: SeqId) -> None:
        """A sequence has ended, wherever it was."""
        self.release(seq_id)
        self.host.forget(seq_id)

    def hold(self, block: int) -> None:
        self.holders[block] += 1
        self.released_at.pop(block, None)

    def drop(self, block: int) -> None:
        self.holders[block] -= 1
        if not self.holders[block] and block in self.beginnings:
            self.released_at[block] = self.now

    # -- counts --------------------------------------------------------------------------------------------------

    @property
    def num_held_blocks(self) -> int:
        return sum(count > 0 for count in self.holders.values())

    @property
    def num_empty_blocks(self) -> int:
        return self.world.num_blocks - self.num_held_blocks - len(self.released_at)

    def check(self, stats: SchedulerStats) -> None:
        """L1: what the scheduler says of its memory."""
        slots = {
            (table[position // self.world.block_size], position % self.world.block_size)
            for seq_id, table in self.tables.items()
            for position in range(self.stored[seq_id])
        }
        expected = {
            "num_free_blocks": stats.num_blocks - self.num_held_blocks,
            "num_cached_blocks": len(self.released_at),
            "num_shared_blocks": sum(count > 1 for count in self.holders.values()),
            "num_stored_tokens": len(slots),
            "num_host_blocks": self.host.num_blocks,
            "num_free_host_blocks": self.host.num_blocks - len(self.host.held),
            "num_prefix_query_tokens": self.counts["tokens looked up"],
            "num_prefix_hit_tokens": self.counts["tokens found"],
            "num_evicted_blocks": self.counts["evictions"],
            "num_swapped_out_blocks": self.counts["blocks swapped out"],
            "num_swapped_in_blocks": self.counts["blocks swapped in"],
        }
        self.admission.see(self.num_held_blocks, len(self.tables))
        told = {name: getattr(stats, name) for name in expected}
        wrong = {name: (told[name], value) for name, value in expected.items() if told[name] != value}
        assert not wrong, f"L1: told, and true: {wrong}"

    def nobodys(self) -> tuple[list[int], list[int]]:
        """Blocks that nobody may count on, here and in the host tier."""
        here = [b for b in range(self.world.num_blocks) if not self.holders[b] and b not in self.beginnings]
        return here, [*(set(range(self.world.num_host_blocks)) - self.host.held)]
