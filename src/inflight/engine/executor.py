"""The contract between a scheduler's decision and the machine that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inflight.core.output import SchedulerOutput, StepResult


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The KV memory of one executor: blocks of ``block_size`` tokens, ``bytes_per_block`` each, in two tiers."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    num_host_blocks: int = 0  # beside them, for what is swapped out


class Executor(Protocol):
    """Runs steps, one at a time.

    Its per-sequence state starts at ``output.new`` and ends at ``output.finished`` (or ``close``), both taken in before
    anything of the step can fail; the tokens of a sequence are those that were scheduled, so a step that failed can be
    run again. It reads and writes KV through the block tables only, after the copies of the step.
    """

    capacity: KVCapacity

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Run one step. Raises ``StepFailed`` if the step as a whole could not be run."""

    def close(self) -> None:
        """Release memory and threads; idempotent."""
