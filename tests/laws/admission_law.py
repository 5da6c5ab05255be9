"""What a policy of admission promises about each row that enters while others run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from inflight.core.request import SeqId
from laws.world import World


class Size(NamedTuple):
    """Tokens of a sequence, now and at most. Its last token is never run."""

    num_tokens: int
    limit: int


class AdmissionLaw:
    def __init__(self, world: World) -> None:
        self.world, self.config = world, world.config
        piece = world.num_held_for(1) if world.config.kv_allocator == "contiguous" else 1
        self.num_blocks = world.num_blocks // piece * piece
        self.is_paused = False

    def on_preemption(self) -> None:
        self.is_paused = True

    def see(self, num_held: int, num_running: int) -> None:
        """So many blocks are held now, by so many rows; one that runs alone keeps nobody out."""
        above = num_held > self.config.watermark_low * self.num_blocks
        self.is_paused = self.is_paused and above and num_running > 1

    def check(self, seq_id: SeqId, sizes: Mapping[SeqId, Size], num_held: int, num_shared: int) -> None:
        """A row enters beside others: ``sizes`` are of all, ``num_shared`` blocks that others hold become its own."""
        now = num_held + self.world.num_held_for(sizes[seq_id].num_tokens) - num_shared
        reserved = sum(self.world.num_held_for(size.limit - 1) for size in sizes.values())
        match self.config.admission:
            case "watermark" if reserved > self.num_blocks:
                assert not self.is_paused, f"L5: {seq_id} entered in the pause after a preemption"
                assert now <= self.config.watermark_high * self.num_blocks, f"L5: {seq_id} entered above the mark"
            case "future-peak":
                peak = max(self.num_needed(sizes, num_steps) for num_steps in range(self.config.max_model_len))
                assert peak <= self.num_blocks, f"L5: {seq_id} entered, {peak} blocks will be needed"
            case "reserve-all":
                assert reserved <= self.num_blocks, f"L5: {seq_id} entered, {reserved} blocks are reserved"

    def num_needed(self, sizes: Mapping[SeqId, Size], num_steps: int) -> int:
        """Blocks that all rows need after so many more steps, if each of them runs as long as it may."""
        grown = [
            min(size.num_tokens + num_steps, size.limit - 1)
            for size in sizes.values()
            if size.num_tokens + num_steps <= size.limit
        ]
        return sum(map(self.world.num_held_for, grown))
