"""What a comparison must know of a model on a machine: facts, and how long its steps take; as a file, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from inflight.assemble import effective_max_model_len, effective_num_batched_tokens, measured_num_batched_tokens
from inflight.compare.config import CompareConfig
from inflight.compare.variants import continuous_config
from inflight.core.output import SchedulerOutput
from inflight.engine.executor import KVCapacity
from inflight.engine.recorder import Line, Scheduled, Updated
from inflight.metrics.summary import percentile
from inflight.schedulers.config import ContinuousConfig, SchedulerConfig
from inflight.sim.cost import LinearStepCost, fit_step_cost

if TYPE_CHECKING:
    from inflight.runtime.runner import ModelExecutor


Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]


class Machine(msgspec.Struct, frozen=True):
    """A model, loaded: its limits and its KV memory."""

    model: str
    vocab_size: Count
    max_position_embeddings: Count
    num_blocks: Count
    block_size: Count
    bytes_per_block: Count
    max_num_batched_tokens: Count  # of a step of about 100 ms, or as configured
    notes: tuple[str, ...] = ()
    num_host_blocks: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0

    @property
    def capacity(self) -> KVCapacity:
        """The KV memory."""
        return KVCapacity(self.num_blocks, self.block_size, self.bytes_per_block, self.num_host_blocks)


class StepCost(msgspec.Struct, frozen=True):
    """A machine whose steps need not be run: their cost, and how far it was off where it was fitted."""

    machine: Machine
    cost: LinearStepCost
    num_steps: int
    relative_error_p50: float  # |predicted - measured| / measured
    relative_error_p90: float


def machine_of(executor: ModelExecutor, model: str, config: CompareConfig) -> Machine:
    """The facts of a loaded model; measures the tokens of a step unless they are configured."""
    asked, capacity, of_model = continuous_config(config), executor.capacity, executor.model_config
    max_model_len, why_len = effective_max_model_len(of_model.max_position_embeddings, asked, capacity)
    measure = partial(measured_num_batched_tokens, executor)
    num_tokens, why_chunk = effective_num_batched_tokens(asked, max_model_len, capacity.block_size, measure)
    return Machine(
        model=model,
        vocab_size=of_model.vocab_size,
        max_position_embeddings=of_model.max_position_embeddings,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        bytes_per_block=capacity.bytes_per_block,
        max_num_batched_tokens=num_tokens,
        notes=(*executor.notes, why_len, why_chunk),
        num_host_blocks=capacity.num_host_blocks,
    )


def shared_max_model_len(machine: Machine, schedulers: Iterable[SchedulerConfig]) -> int:
    """The longest sequence, in tokens, that every one of the schedulers can run.

    Raises ``ValueError`` if there is none.
    """
    allowed = [effective_max_model_len(machine.max_position_embeddings, one, machine.capacity) for one in schedulers]
    max_model_len, why = min(allowed)
    if max_model_len < 1:
        raise ValueError(f"there is too little KV memory: {why}")
    return max_model_len


def decided(asked: SchedulerConfig, machine: Machine, max_model_len: int) -> SchedulerConfig:
    """The configuration with the limits that depend on the machine. Raises ``ValueError`` if they contradict it."""
    if isinstance(asked, ContinuousConfig):
        return decided_continuous(asked, machine, max_model_len)
    return replace(asked, max_model_len=max_model_len)


def decided_continuous(asked: ContinuousConfig, machine: Machine, max_model_len: int) -> ContinuousConfig:
    """The same for continuous batching."""
    num_tokens, _ = effective_num_batched_tokens(
        asked, max_model_len, machine.block_size, lambda: (machine.max_num_batched_tokens, "")
    )
    return replace(asked, max_model_len=max_model_len, max_num_batched_tokens=num_tokens)


def fit(machine: Machine, log: Sequence[Line]) -> StepCost:
    """Fit the cost of a step to a log of steps that were run. Raises ``ValueError`` for fewer than three of them."""
    cost = fit_step_cost(log)
    errors = sorted(
        abs(cost.duration_s(output) - measured_s) / measured_s for output, measured_s in _steps(log) if measured_s > 0
    )
    p50, p90 = (percentile(errors, quantile) or 0.0 for quantile in (0.5, 0.9))
    return StepCost(machine, cost, len(errors), p50, p90)


def _steps(log: Iterable[Line]) -> Iterator[tuple[SchedulerOutput, float]]:
    """The steps of a log, or of several, that succeeded, and what they took in seconds."""
    outputs: dict[int, SchedulerOutput] = {}
    for line in log:
        if isinstance(line, Scheduled):
            outputs[line.output.step] = line.output
        elif isinstance(line, Updated) and line.result is not None:
            yield outputs.pop(line.step), line.result.duration_s


def read_step_cost(path: Path) -> StepCost:
    """Read what ``write_step_cost`` wrote. Raises ``ValueError`` if it is not that, ``OSError`` if it is not there."""
    try:
        read = msgspec.json.decode(path.read_bytes(), type=StepCost)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no step cost: {error}") from error
    if any(not value >= 0 for value in astuple(read.cost)):
        raise ValueError(f"{path} is no step cost: a step cannot take less than 0 s")
    return read


def write_step_cost(path: Path, cost: StepCost) -> None:
    """Write the cost of a machine's steps, to simulate it wherever one likes."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(cost), indent=2) + b"\n")
