"""How a budget of memory is divided between weights, activations, the host tier and KV: arithmetic, and its lines.

Serving and ``inflight plan memory`` use the same functions. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from inflight.runtime.config import GIB, RuntimeConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.memory_demand import Demand, attention_text, block_text, gib, weights_text
from inflight.runtime.models.llama_sizes import StepSize

DEFAULT_HOST_BYTES = GIB // 2
DEFAULT_HOST_PART = 8  # of what weights and activations leave, no more than this part

LargestStep = Callable[[int, int], StepSize]  # (tokens that the model allows, KV blocks) -> the largest step


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a server may plan with."""

    total_bytes: int
    is_declared: bool  # otherwise it is what is free
    share: float
    reserve_bytes: int

    @property
    def room_bytes(self) -> int:
        """What the parts may take together; negative where more is reserved."""
        return int(self.total_bytes * self.share) - self.reserve_bytes

    @property
    def text(self) -> str:
        """The arithmetic of the room, for people."""
        return (
            f"{self.share:g} x {gib(self.total_bytes)} {'of --memory-budget' if self.is_declared else 'available'}"
            + (f" - {gib(self.reserve_bytes)} reserved" if self.reserve_bytes else "")
            + f" = {gib(self.room_bytes)}"
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The KV blocks of an executor, and why there are so many; ``step`` is the largest one that was planned for."""

    config: RuntimeConfig
    budget: Budget
    demand: Demand
    step: StepSize
    num_blocks: int
    num_host_blocks: int

    @property
    def kv_bytes(self) -> int:
        """Of all blocks."""
        return self.num_blocks * self.demand.block_bytes

    @property
    def activation_bytes(self) -> int:
        """Of the largest step."""
        return self.demand.activation_bytes(self.step)

    @property
    def host_bytes(self) -> int:
        """Of the host tier, in memory or in a file."""
        return self.num_host_blocks * self.demand.block_bytes

    @property
    def counted_host_bytes(self) -> int:
        """Those of them that the budget pays for."""
        return self.host_bytes if _pays_for_host(self.config) else 0

    @property
    def taken_bytes(self) -> int:
        """What is taken of the budget."""
        return self.demand.weight_bytes + self.activation_bytes + self.counted_host_bytes + self.kv_bytes


def plan_memory(config: RuntimeConfig, demand: Demand, largest_step: LargestStep, available: int) -> MemoryPlan:
    """Divide the budget; ``available`` is what is free now.

    The KV gets what weights, activations and the host tier leave, in whole blocks. Raises ``InsufficientMemory`` with
    the numbers, if that is less than one block, or if all of it together with the reserve is more than is available.
    """
    share = config.gpu_memory_utilization if config.num_gpu_blocks_override is None else 1.0
    total = available if config.memory_budget is None else config.memory_budget
    budget = Budget(total, config.memory_budget is not None, share, config.reserve_bytes)
    if demand.weight_bytes > budget.room_bytes:
        raise InsufficientMemory(
            f"{weights_text(demand)} do not fit into {budget.text}; free some memory, reserve less, or choose a "
            "smaller format"
        )
    of_model = demand.model.max_position_embeddings
    left_bytes = budget.room_bytes - demand.weight_bytes - demand.activation_bytes(largest_step(of_model, 1))
    num_host_blocks = _host_bytes(config, left_bytes) // demand.block_bytes

    def with_blocks(num_blocks: int) -> MemoryPlan:
        return MemoryPlan(config, budget, demand, largest_step(of_model, num_blocks), num_blocks, num_host_blocks)

    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None:
        most = range(1, 1 + _most_blocks(config, demand))
        num_blocks = bisect_right(most, budget.room_bytes, key=lambda count: with_blocks(count).taken_bytes)
    plan = with_blocks(max(num_blocks, 1))
    if plan.taken_bytes > budget.room_bytes:
        raise InsufficientMemory(
            f"no room: {parts_text(plan)}; they do not fit into {budget.text}; free some memory, lower "
            "--swap-space-bytes, --max-num-batched-tokens or the rows of a batch, or choose a smaller format"
        )
    if plan.taken_bytes > available - config.reserve_bytes:
        raise InsufficientMemory(
            f"{parts_text(plan)}, of {budget.text}; only {gib(available)} are available, and "
            f"{gib(config.reserve_bytes)} of them are reserved"
        )
    return plan


def plan_notes(plan: MemoryPlan) -> tuple[str, ...]:
    """Why there are so many blocks, line by line, for people."""
    demand, step, file = plan.demand, plan.step, plan.config.swap_file
    notes = (
        f"{weights_text(demand)} ({demand.model.weight_format} on disk), of {plan.budget.text}",
        f"Activations: {gib(plan.activation_bytes)} at most, in a step of {step.num_tokens:,} tokens and "
        f"{step.num_logits:,} rows of logits",
        attention_text(demand),
        f"KV: {gib(plan.kv_bytes)} / {block_text(demand)} = {plan.num_blocks:,} blocks = "
        f"{plan.num_blocks * demand.block_size:,} tokens",
    )
    if not plan.num_host_blocks:
        return notes
    where = "host memory, touched when used" if file is None else f"the file {file}"
    return *notes, f"Host tier: {plan.num_host_blocks:,} blocks = {gib(plan.host_bytes)} in {where}"


def parts_text(plan: MemoryPlan) -> str:
    """All that is taken, and their sum, for people."""
    return (
        f"{weights_text(plan.demand)}, {gib(plan.activation_bytes)} of activations in a step of "
        f"{plan.step.num_tokens:,} tokens, {gib(plan.counted_host_bytes)} of the host tier and {plan.num_blocks:,} KV "
        f"blocks of {plan.demand.block_bytes:,} bytes = {gib(plan.kv_bytes)}: together {gib(plan.taken_bytes)}"
    )


def _pays_for_host(config: RuntimeConfig) -> bool:
    """Whether the host tier lies in the memory that is divided, not in a file nor beside a device's own."""
    return config.swap_file is None and config.device == "cpu"


def _host_bytes(config: RuntimeConfig, left_bytes: int) -> int:
    """What is asked for, or a small part of what weights and activations leave."""
    if config.swap_space_bytes is not None:
        return config.swap_space_bytes
    if not _pays_for_host(config):
        return DEFAULT_HOST_BYTES
    return min(DEFAULT_HOST_BYTES, max(0, left_bytes) // DEFAULT_HOST_PART)


def _most_blocks(config: RuntimeConfig, demand: Demand) -> int:
    """All that ``kv_cache_memory_bytes`` allows."""
    most = config.kv_cache_memory_bytes // demand.block_bytes
    if not most:
        raise InsufficientMemory(
            f"no room for one KV block of {demand.block_bytes:,} bytes: at most {config.kv_cache_memory_bytes:,} "
            "bytes for KV"
        )
    return most
