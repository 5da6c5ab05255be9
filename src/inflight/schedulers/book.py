"""Every live sequence by id, every change of status, and the fate of every request."""

from __future__ import annotations

from collections import Counter

from inflight.cache.manager import KVCacheManager
from inflight.core.errors import InvariantViolation
from inflight.core.lifecycle import ENDED, Status, Transition, check_move
from inflight.core.output import SchedulerStats
from inflight.core.request import RequestId, SeqId
from inflight.core.sequence import Sequence


class Book:
    """received = finished + aborted + rejected + failed + live, at every instant, counted in requests.

    A request ends with its last choice: aborted if one of them was, else failed if one did, else finished.
    """

    def __init__(self) -> None:
        self.sequences: dict[SeqId, Sequence] = {}
        self.num_received = 0
        self.num_rejected = 0
        self.num_preemptions = 0
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0
        self.num_ended: Counter[Status] = Counter()  # requests by fate
        self._live: dict[RequestId, list[Sequence]] = {}
        self._fates: dict[RequestId, set[Status]] = {}
        self._transitions: list[Transition] = []
        self._ended_in_executor: list[SeqId] = []

    @property
    def num_live(self) -> int:
        """Requests with at least one choice that has not ended."""
        return len(self._live)

    def live(self, request_id: RequestId) -> tuple[Sequence, ...]:
        """The choices of a request that have not ended; none for an unknown id."""
        return tuple(self._live.get(request_id, ()))

    def open(self, request_id: RequestId, choices: list[Sequence]) -> None:
        """Enter an accepted request."""
        self._live[request_id] = choices
        self._fates[request_id] = set()
        self.sequences.update((seq.seq_id, seq) for seq in choices)

    def move(self, seq: Sequence, after: Status, step: int, cause: str) -> None:
        """Change a sequence's status. Raises ``InvariantViolation``, and changes nothing, if the move is illegal."""
        check_move(seq.seq_id, seq.status, after)
        self._transitions.append(Transition(seq.seq_id, step, seq.status, after, cause))
        seq.status = after
        self.num_preemptions += after is Status.PREEMPTED
        if after in ENDED:
            self._close(seq)

    def take_transitions(self) -> tuple[Transition, ...]:
        """The status changes since the last call, oldest first."""
        taken, self._transitions = tuple(self._transitions), []
        return taken

    def take_ended_in_executor(self) -> tuple[SeqId, ...]:
        """Ended sequences of which an executor still keeps state."""
        taken, self._ended_in_executor = tuple(self._ended_in_executor), []
        return taken

    def stats(
        self, num_running_seqs: int, num_waiting_seqs: int, num_stored_tokens: int, kv: KVCacheManager
    ) -> SchedulerStats:
        """The counts of this instant; ``num_stored_tokens`` is the sum over all running sequences."""
        usage = kv.usage()
        return SchedulerStats(
            received=self.num_received,
            finished=self.num_ended[Status.FINISHED],
            aborted=self.num_ended[Status.ABORTED],
            rejected=self.num_rejected,
            failed=self.num_ended[Status.FAILED],
            live=self.num_live,
            num_running_seqs=num_running_seqs,
            num_waiting_seqs=num_waiting_seqs,
            num_preemptions=self.num_preemptions,
            num_blocks=usage.num_blocks,
            num_free_blocks=usage.num_free_blocks,
            num_cached_blocks=usage.num_cached_blocks,
            num_shared_blocks=usage.num_shared_blocks,
            num_stored_tokens=num_stored_tokens - usage.num_repeated_entries * kv.block_size,
            num_host_blocks=usage.num_host_blocks,
            num_free_host_blocks=usage.num_free_host_blocks,
            num_prefix_query_tokens=self.num_prefix_query_tokens,
            num_prefix_hit_tokens=self.num_prefix_hit_tokens,
            num_evicted_blocks=usage.num_evicted_blocks,
            num_swapped_out_blocks=usage.num_swapped_out_blocks,
            num_swapped_in_blocks=usage.num_swapped_in_blocks,
        )

    def check(self) -> None:
        """Raise ``InvariantViolation`` unless requests are conserved."""
        num_known = sum(self.num_ended.values()) + self.num_rejected + self.num_live
        if num_known != self.num_received:
            raise InvariantViolation(f"{self.num_received} requests received, {num_known} accounted for")
        if {seq.seq_id for choices in self._live.values() for seq in choices} != self.sequences.keys():
            raise InvariantViolation("live requests and live sequences differ")

    def _close(self, seq: Sequence) -> None:
        request_id = seq.seq_id[0]
        del self.sequences[seq.seq_id]
        if seq.known_to_executor:
            self._ended_in_executor.append(seq.seq_id)
        fates = self._fates[request_id]
        fates.add(seq.status)
        self._live[request_id].remove(seq)
        if not self._live[request_id]:
            fate = next(status for status in (Status.ABORTED, Status.FAILED, Status.FINISHED) if status in fates)
            self.num_ended[fate] += 1
            del self._live[request_id], self._fates[request_id]
