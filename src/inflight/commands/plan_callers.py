"""The KV of callers: what a full batch of them takes, and how many fit at once."""

from __future__ import annotations

from dataclasses import replace

from inflight.commands.plan_report import BatchReport
from inflight.config import EngineConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.memory_demand import Demand
from inflight.runtime.memory_plan import MemoryPlan
from inflight.runtime.models.llama_sizes import StepSize
from inflight.schedulers.config import RequestLevelConfig
from inflight.schedulers.memory import num_scratch_blocks


def batch_report(
    demand: Demand, engine: EngineConfig, num_prompt_tokens: int, num_output_tokens: int, largest: StepSize
) -> BatchReport:
    """A batch of all seats; continuous batching takes no larger steps than ``largest``."""
    num_rows, length = engine.scheduler.num_seats, num_prompt_tokens + num_output_tokens
    step = StepSize(max(num_rows, min(largest.num_tokens, num_rows * num_prompt_tokens)), num_rows, length)
    if isinstance(engine.scheduler, RequestLevelConfig):
        step = replace(step, num_tokens=num_rows * num_prompt_tokens)
    num_blocks = num_rows * _num_blocks(engine, length, max(length, largest.max_len))
    num_blocks += num_scratch_blocks(engine.scheduler, length, engine.runtime.block_size)
    kv_bytes, activation_bytes = num_blocks * demand.block_bytes, demand.activation_bytes(step)
    return BatchReport(
        num_rows=num_rows,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        weight_bytes=demand.weight_bytes,
        kv_bytes=kv_bytes,
        activation_bytes=activation_bytes,
        total_bytes=demand.weight_bytes + kv_bytes + activation_bytes,
    )


def num_callers(plan: MemoryPlan | InsufficientMemory, engine: EngineConfig, length: int) -> int:
    """Sequences of so many tokens, prompt and output, that the KV holds at once."""
    if isinstance(plan, InsufficientMemory) or length > plan.step.max_len:
        return 0
    max_len = plan.step.max_len
    num_left = plan.num_blocks - num_scratch_blocks(engine.scheduler, max_len, engine.runtime.block_size)
    return num_left // _num_blocks(engine, length, max_len)


def _num_blocks(engine: EngineConfig, length: int, max_len: int) -> int:
    """Of one sequence when it ends: the last token of an answer is never run, and nothing of it is stored.

    ``max_len`` tokens are reserved for it where memory is contiguous.
    """
    num_stored = max_len if engine.scheduler.kv_allocator == "contiguous" else max(1, length - 1)
    return -(-num_stored // engine.runtime.block_size)
