"""A word in the log before the KV memory is full, and another one when there is room again."""

from __future__ import annotations

import logging

from inflight.core.output import SchedulerStats

logger = logging.getLogger(__name__)

HIGH = 0.9  # share of the blocks that sequences hold
LOW = 0.8


class KVAlarm:
    """Warns when the share of held blocks reaches ``HIGH``, and is quiet until a whole period has stayed below ``LOW``.

    A busy server sways about the share at which nobody else may enter: each time it got there would be no news.
    """

    def __init__(self) -> None:
        self._raised = False
        self._peak = 0.0  # of this period

    def watch(self, stats: SchedulerStats) -> None:
        """Look at the stats after a step."""
        if not stats.num_blocks:  # an engine that was lost holds nothing
            self._raised = False
            return
        num_held = stats.num_blocks - stats.num_free_blocks
        share = num_held / stats.num_blocks
        self._peak = max(self._peak, share)
        if not self._raised and share >= HIGH:
            self._raised = True
            logger.warning(
                "the KV cache is nearly full: %d of %d blocks (%.1f %%) are held by %d sequences, %d wait, %d "
                "preemptions so far. New sequences wait for room, and running ones may be preempted. What helps: more "
                "memory (--kv-cache-memory-bytes), a smaller --kv-cache-dtype, fewer sequences at once "
                "(--max-num-seqs), shorter answers (max_tokens)",
                *(num_held, stats.num_blocks, 100 * share),
                *(stats.num_running_seqs, stats.num_waiting_seqs, stats.num_preemptions),
            )

    def end_period(self) -> None:
        """A period is over; a new one begins."""
        if self._raised and self._peak < LOW:
            self._raised = False
            logger.info("the KV cache has room again: at most %.1f %% of its blocks were held lately", 100 * self._peak)
        self._peak = 0.0
