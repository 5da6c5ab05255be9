"""How full the KV memory is, step by step, from the block tables in a step log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inflight.core.output import BlockId, SchedulerOutput
from inflight.explain.log import EngineLog


class KVUsage(NamedTuple):
    """The memory of the rows of one step; a slot holds the keys and values of one token."""

    step: int
    allocated_slots: int
    written_slots: int  # once the step has ended
    num_rows: int

    @property
    def unused_share(self) -> float:
        """The share of the allocated slots that is reserved but not written; 0 without any."""
        return 1 - self.written_slots / self.allocated_slots if self.allocated_slots else 0.0


def kv_usage(log: EngineLog) -> list[KVUsage]:
    """The usage of every step that ended.

    Counted are the blocks of the rows that run, each block once; the scratch blocks of padded steps are not. Raises
    ``ValueError`` for a log that is not valid.
    """
    block_size = log.started.block_size
    return [usage_of(done.output, block_size) for done in log.steps()]


def usage_of(output: SchedulerOutput, block_size: int) -> KVUsage:
    """The usage of one step."""
    written = written_slots(output, block_size)
    return KVUsage(output.step, len(written) * block_size, sum(written.values()), len(output.scheduled))


def written_slots(output: SchedulerOutput, block_size: int) -> dict[BlockId, int]:
    """How many slots of each allocated block are written once the step has ended."""
    written: dict[BlockId, int] = {}
    for row in output.scheduled:
        end = row.start + len(row.token_ids)
        for index, block in enumerate(row.block_table):
            mine = max(0, min(block_size, end - index * block_size))
            written[block] = max(mine, written.get(block, 0))
    return written


def fullest(usages: Iterable[KVUsage]) -> KVUsage:
    """The first of the steps with the most allocated slots. Raises ``ValueError`` if there is none."""
    best = max(usages, key=lambda usage: usage.allocated_slots, default=None)
    if best is None:
        raise ValueError("the log holds no step that ended: there is no memory to draw")
    return best
