"""An executor that computes nothing: steps take as long as a model of their cost says."""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.output import SampledRow, SampledToken, SchedulerOutput, StepResult
from inflight.core.request import SeqId
from inflight.engine.executor import KVCapacity

StepCost = Callable[[SchedulerOutput], float]  # seconds
NextToken = Callable[[SeqId, int], SampledToken]  # (sequence, position of the new token)


def always_zero(seq_id: SeqId, position: int) -> SampledToken:
    """A model that says token 0 for ever, so that sequences end at their ``max_tokens``."""
    return SampledToken(0)


def free_copies(output: SchedulerOutput) -> float:
    """Copies that take no time."""
    return 0.0


class SimExecutor:
    """Predicts durations and makes tokens up; fulfils ``engine.executor.Executor``.

    ``cost_s`` is of a whole step, ``copies_s`` what its copies take of that.
    """

    def __init__(
        self,
        capacity: KVCapacity,
        cost_s: StepCost,
        next_token: NextToken = always_zero,
        copies_s: StepCost = free_copies,
    ) -> None:
        self.capacity = capacity
        self._cost_s = cost_s
        self._next_token = next_token
        self._copies_s = copies_s

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Say at once what the step would have given, and how long it would have taken."""
        sampled = tuple(
            SampledRow(row.seq_id, (self._next_token(row.seq_id, row.start + len(row.token_ids)),))
            for row in output.scheduled
            if row.num_logits
        )
        return StepResult(output.step, sampled, self._cost_s(output), copies_s=self._copies_s(output))

    def close(self) -> None:
        """Nothing to release."""
