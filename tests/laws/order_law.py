"""Who enters and who has to go: the one order, and what may break it."""

from __future__ import annotations

from collections import Counter

from inflight.core.output import SchedulerOutput
from inflight.core.request import SeqId
from inflight.schedulers.admission import NUM_HEADROOM_TOKENS
from inflight.schedulers.config import ContinuousConfig
from laws.account import Account
from laws.kv_account import KVAccount


class OrderLaw:
    def __init__(self, account: Account, memory: KVAccount, config: ContinuousConfig) -> None:
        self.account, self.memory, self.config = account, memory, config
        self.keys = account.keys
        self.preemptions: Counter[SeqId] = Counter()
        self.last_admission = -100

    def check(self, output: SchedulerOutput) -> set[SeqId]:
        """Check a step before the account of memory takes it in; returns the rows that enter with it."""
        running, preempted = dict(self.memory.stored), set(output.preempted)
        entering = {row.seq_id for row in output.scheduled} - (running.keys() - preempted)
        if entering:
            self.last_admission = output.step
        if preempted:
            self.check_victims(output, running)
        if entering:
            self.check_fairness(output, entering, running)
        return entering

    def check_victims(self, output: SchedulerOutput, running: dict[SeqId, int]) -> None:
        """L5, L9: the last of the order have to go, but nobody for ever, and not right after others came in."""
        for seq_id in output.preempted:
            assert seq_id in running, f"L10: {seq_id} preempted but was not running"
            self.preemptions[seq_id] += 1
            num = self.preemptions[seq_id]
            assert num <= self.config.max_preemptions, f"L5: {seq_id} preempted {num} times"
        first = min(self.keys[seq_id] for seq_id in output.preempted)
        for seq_id in running.keys() - set(output.preempted):
            spared = self.preemptions[seq_id] >= self.config.max_preemptions
            assert spared or self.keys[seq_id] < first, f"L9: {output.preempted} had to go, {seq_id} stayed"
        too_soon = output.step - self.last_admission <= NUM_HEADROOM_TOKENS
        assert not too_soon, "L5: an admission forced a preemption within two steps"

    def check_fairness(self, output: SchedulerOutput, entering: set[SeqId], running: dict[SeqId, int]) -> None:
        """L9: nobody is overtaken, but a choice whose siblings are about to compute what it will share."""
        computed = running | {row.seq_id: row.start for row in output.scheduled if row.seq_id in entering}
        waiting = self.account.open - running.keys() - entering
        for seq_id in entering:
            assert not self.is_held_back(seq_id, running, computed), f"L9: {seq_id} entered before it could share"
            for other in waiting:
                if self.keys[other] < self.keys[seq_id]:
                    assert self.is_held_back(other, running, computed), f"L9: {seq_id} overtook {other}"
                    self.memory.counts["overtaken siblings"] += 1

    def is_held_back(self, seq_id: SeqId, running: dict[SeqId, int], computed: dict[SeqId, int]) -> bool:
        """Whether, when its turn came, another choice of its request ran and had not computed the full blocks."""
        num_shared = self.memory.num_sharable(len(self.account.live[seq_id[0]].prompt_token_ids))
        return any(
            other[0] == seq_id[0] and num < num_shared and (other in running or self.keys[other] < self.keys[seq_id])
            for other, num in computed.items()
            if other != seq_id
        )
