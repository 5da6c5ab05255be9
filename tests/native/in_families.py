"""The same requests on a real model in every family of schedulers, padded and ragged, in every kind of memory.

Arrivals and steps happen in virtual time, by a fixed cost of a step, so that the batches are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from inflight.core.errors import Rejected, StepFailed
from inflight.core.output import SampledToken, SchedulerOutput, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SamplingParams, SeqId
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.metrics.ledger import Ledger, Slots
from inflight.runtime.runner import ModelExecutor
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.cost import LinearStepCost
from inflight.sim.loop import simulate

MAX_CHOICES = 2  # of one request
COST = LinearStepCost(constant_s=5e-3, per_token_s=1e-3, per_context_token_s=0.0)
Outputs = dict[SeqId, tuple[SampledToken, ...]]


def configs(num_seats: int, max_model_len: int) -> dict[str, SchedulerConfig]:
    """Every family, by what is particular about it."""
    found: dict[str, SchedulerConfig] = {}
    for allocator, padding in product(("paged", "contiguous"), (True, False)):
        common = {"max_model_len": max_model_len, "kv_allocator": allocator}
        how = f"{'padded' if padding else 'ragged'} {allocator}"
        found[f"static {how}"] = StaticConfig(batch_size=num_seats, padding=padding, **common)
        found[f"dynamic {how}"] = DynamicConfig(
            max_batch_size=num_seats, max_wait_ms=50, length_bins=(max_model_len // 8,), padding=padding, **common
        )
        if not padding:
            found[f"continuous {allocator}"] = ContinuousConfig(
                max_num_seqs=num_seats, max_num_batched_tokens=max(num_seats, 24), **common
            )
    return found


@dataclass(frozen=True)
class Outcome:
    outputs: Outputs
    slots: Slots
    num_steps: int
    num_shared_steps: int  # steps of more than one row


class NoText:
    """Nobody reads; fulfils the engine's ``Text``."""

    def __init__(self, sampling: SamplingParams) -> None:
        pass

    def push(self, token_ids: Sequence[int]) -> Stop | None:
        return None

    def take(self, final: bool) -> str:
        return ""


class _Timed:
    """An executor whose steps take as long as ``COST`` says."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.capacity = executor.capacity
        self._executor = executor

    def execute(self, output: SchedulerOutput) -> StepResult:
        return replace(self._executor.execute(output), duration_s=COST.duration_s(output))

    def close(self) -> None:
        pass


class _Watcher:
    """An observer that keeps what callers got, and compares what was computed with what should have been."""

    def __init__(self, num_seats: int) -> None:
        self.outputs: Outputs = {}
        self.ledger = Ledger(num_seats)
        self.num_steps = self.num_shared_steps = self.num_computed_tokens = 0

    def on_add(self, request: Request, rejected: Rejected | None, now_s: float) -> None:
        assert rejected is None, rejected

    def on_abort(self, request_id: RequestId, now_s: float) -> None:
        raise AssertionError("nobody aborts")

    def on_flush(self, now_s: float) -> None:
        pass

    def on_schedule(self, output: SchedulerOutput, now_s: float) -> None:
        self.num_steps += 1
        self.num_shared_steps += len(output.scheduled) + len(output.dead) > 1

    def on_update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        events: tuple[TokenEvent, ...],
        now_s: float,
    ) -> None:
        assert isinstance(result, StepResult), result
        assert result.num_computed_tokens == output.num_computed_tokens, output.step
        self.num_computed_tokens += result.num_computed_tokens
        self.ledger.on_update(output, False, events)
        assert self.ledger.slots.num_computed_tokens == self.num_computed_tokens, output.step
        for event in events:
            assert event.error is None, event.error
            self.outputs[event.seq_id] = self.outputs.get(event.seq_id, ()) + event.tokens


def run(executor: ModelExecutor, config: SchedulerConfig, requests: Sequence[Request]) -> Outcome:
    """Serve requests to their ends. Raises ``AssertionError`` if a step computed more or less than it was told to."""
    clock, watcher = VirtualClock(), _Watcher(config.num_seats)
    scheduler = make_scheduler(config, executor.capacity.num_blocks, executor.capacity.block_size)
    core = EngineCore(scheduler, dict.fromkeys(scheduler.lanes, _Timed(executor)), NoText, clock, [watcher])
    simulate(core, scheduler.lanes, clock, requests)
    executor.execute(SchedulerOutput("main", watcher.num_steps, (), finished=tuple(watcher.outputs)))
    return Outcome(watcher.outputs, watcher.ledger.slots, watcher.num_steps, watcher.num_shared_steps)


def alone(executor: ModelExecutor, max_model_len: int, requests: Sequence[Request]) -> Outputs:
    """What each request gives with nobody else there."""
    config = ContinuousConfig(
        max_num_seqs=MAX_CHOICES, max_num_batched_tokens=max_model_len, max_model_len=max_model_len
    )
    outputs: Outputs = {}
    for request in requests:
        outputs |= run(executor, config, [replace(request, arrival_s=0.0)]).outputs
    return outputs


def logprobs_are_finite(outputs: Outputs) -> bool:
    return all(
        token.logprob is not None and math.isfinite(token.logprob) for tokens in outputs.values() for token in tokens
    )
