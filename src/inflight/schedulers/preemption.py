"""Who gives up its memory when a running row needs a block and none is free, and what becomes of its KV."""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows

from inflight.core.output import SchedulerOutput, StepResult
from inflight.core.sequence import Sequence
from inflight.schedulers.admission import Promises


def victim_index(running: Rows[Sequence], position: int, promises: Promises) -> int | None:
    """The index of the last row of the order that may be preempted for the row at ``position``.

    Only rows from ``position`` on qualify: those before it are in this step already, and nothing decided in a step
    is undone in it. The row itself is the last resort. ``None`` if all of them are protected.
    """
    for index in range(len(running) - 1, position - 1, -1):
        if not promises.is_protected(running[index]):
            return index
    return None


class SwapOrRecompute:
    """Whether a victim's KV moves to the host tier, or is computed again: ``auto`` compares what both have cost.

    Computing costs what the cheapest token of any step did, copying what a block did in the mean, there and back. What
    a prefix cache may still know of the victim by then is not foreseen. The first victim is swapped, to see what it
    costs.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._token_s = math.inf
        self._copied_s = 0.0
        self._num_copied = 0

    def observe(self, output: SchedulerOutput, result: StepResult) -> None:
        """Learn from a step that has ended."""
        token_s = (result.duration_s - result.copies_s) / output.num_computed_tokens
        self._token_s = min(self._token_s, token_s)
        if output.copies:
            self._copied_s += result.copies_s
            self._num_copied += len(output.copies)

    def swaps(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether ``num_tokens`` stored tokens, in ``num_blocks`` blocks, should be swapped out."""
        if self._mode != "auto" or not self._num_copied:
            return self._mode != "recompute"
        return 2 * num_blocks * self._copied_s / self._num_copied <= num_tokens * self._token_s
