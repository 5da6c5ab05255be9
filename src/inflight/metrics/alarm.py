"""A word in the log before the KV memory is full, and another one when there is room again."""

from __future__ import annotations

import logging

from inflight.core.output import SchedulerStats

logger = logging.getLogger(__name__)

HIGH = 0.9  # share of the blocks that sequences hold
LOW = 0.8  # below HIGH, so that a share that sways between the two says nothing


class KVAlarm:
    """Warns once when the share of held blocks reaches ``HIGH``, and says once when it has fallen to ``LOW``."""

    def __init__(self) -> None:
        self._raised = False

    def watch(self, stats: SchedulerStats) -> None:
        """Look at the stats after a step."""
        if not stats.num_blocks:  # an engine that was lost holds nothing
            self._raised = False
            return
        num_held = stats.num_blocks - stats.num_free_blocks
        share = num_held / stats.num_blocks
        held = f"{num_held} of {stats.num_blocks} blocks ({100 * share:.1f} %) are held"
        if not self._raised and share >= HIGH:
            self._raised = True
            logger.warning(
                "the KV cache is nearly full: %s by %d sequences, %d wait, %d preemptions so far. New sequences wait "
                "for room, and running ones may be preempted. What helps: more memory (--kv-cache-memory-bytes), a "
                "smaller --kv-cache-dtype, fewer sequences at once (--max-num-seqs), shorter answers (max_tokens)",
                *(held, stats.num_running_seqs, stats.num_waiting_seqs, stats.num_preemptions),
            )
        elif self._raised and share <= LOW:
            self._raised = False
            logger.info("the KV cache has room again: %s, %d preemptions so far", held, stats.num_preemptions)
