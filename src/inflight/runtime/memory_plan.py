"""How a budget of memory is divided between weights, activations, swap space and KV: arithmetic, and its lines.

Serving and ``inflight plan memory`` use the same functions. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight.runtime.config import GIB, RuntimeConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.models.llama_sizes import (
    StepSize,
    native_activations,
    native_weight_bytes,
    torch_activations,
)

if TYPE_CHECKING:
    from inflight.runtime.models.base import ModelConfig

# Bits of a number, and whether a scale of 16 bits comes with KV_GROUP of them; see csrc/kv.h.
KV_FORMATS = {
    "float32": (32, False),
    "bfloat16": (16, False),
    "float16": (16, False),
    "int8": (8, True),
    "int4": (4, True),
}
KV_GROUP = 32
COMMON_BYTES = 2  # of a weight and of a KV number, in the formula that is commonly used

DEFAULT_SWAP_BYTES = GIB // 2
DEFAULT_SWAP_PART = 8  # of what weights and activations leave, no more than this part

StepOf = Callable[[int], StepSize]  # KV blocks -> the largest step that a scheduler makes with so many


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model takes of memory, whatever there is of it."""

    model: ModelConfig
    weight_bytes: int
    kv_format: str  # one of KV_FORMATS
    block_size: int
    activations: Callable[[StepSize], Mapping[str, int]]  # bytes of a step, by what they are for

    @property
    def token_bytes(self) -> float:
        """KV of one token in all layers."""
        return kv_token_bytes(self.model, self.kv_format)

    @property
    def block_bytes(self) -> int:
        """KV of one block in all layers."""
        return int(self.token_bytes * self.block_size)

    def activation_bytes(self, step: StepSize) -> int:
        """The peak of a step."""
        return sum(self.activations(step).values())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The KV blocks of an executor, and why there are so many; ``step`` is the largest one that was planned for."""

    demand: Demand
    num_blocks: int
    num_swap_blocks: int
    step: StepSize
    room_bytes: int
    notes: tuple[str, ...]

    @property
    def kv_bytes(self) -> int:
        """Of all blocks."""
        return self.num_blocks * self.demand.block_bytes

    @property
    def activation_bytes(self) -> int:
        """Of the largest step."""
        return self.demand.activation_bytes(self.step)

    @property
    def swap_bytes(self) -> int:
        """Of whole blocks, in memory or in a file."""
        return self.num_swap_blocks * self.demand.block_bytes


def kv_token_bytes(model: ModelConfig, kv_format: str) -> float:
    """KV of one token in all layers, scales included: it counts KV heads, which grouped queries share."""
    bits, scaled = KV_FORMATS[kv_format]
    head_bytes = model.head_dim * bits / 8 + scaled * 2 * -(-model.head_dim // KV_GROUP)
    return model.num_hidden_layers * 2 * model.num_key_value_heads * head_bytes


def common_kv_token_bytes(model: ModelConfig) -> int:
    """The same by the common formula, 2 x hidden_size x layers x 2 bytes, which is right only without grouping."""
    return 2 * model.hidden_size * model.num_hidden_layers * COMMON_BYTES


def native_demand(
    model: ModelConfig,
    config: RuntimeConfig,
    quantization: str,
    num_threads: int,
    is_4_bit: Callable[[str], bool],
) -> Demand:
    """What the model takes in the native kernels; see ``native_weight_bytes``."""
    return Demand(
        model,
        native_weight_bytes(model, quantization, is_4_bit),
        _kv_format(config.kv_cache_dtype, "bfloat16"),
        config.block_size,
        lambda step: native_activations(model, num_threads, step),
    )


def torch_demand(model: ModelConfig, config: RuntimeConfig) -> Demand:
    """What the model takes in torch."""
    dtype = _kv_format(config.dtype, "float32")
    value_bytes = KV_FORMATS[dtype][0] // 8
    return Demand(
        model,
        model.num_parameters * value_bytes,
        _kv_format(config.kv_cache_dtype, dtype),
        config.block_size,
        lambda step: torch_activations(model, value_bytes, step),
    )


def plan_memory(config: RuntimeConfig, demand: Demand, step_of: StepOf, available: int) -> MemoryPlan:
    """Divide the budget; ``available`` is what is free now.

    The KV gets what weights, activations and swap space leave, in whole blocks. Raises ``InsufficientMemory`` with the
    numbers.
    """
    block_bytes = demand.block_bytes
    share = config.gpu_memory_utilization if config.num_gpu_blocks_override is None else 1.0
    budget = available if config.memory_budget is None else config.memory_budget
    room_bytes = int(budget * share) - config.reserve_bytes
    in_budget = config.swap_file is None and config.device == "cpu"  # swap space is host memory
    swap_bytes = config.swap_space_bytes
    if swap_bytes is None:
        left = max(0, room_bytes - demand.weight_bytes - demand.activation_bytes(step_of(1)))
        swap_bytes = min(DEFAULT_SWAP_BYTES, left // DEFAULT_SWAP_PART) if in_budget else DEFAULT_SWAP_BYTES
    num_swap_blocks = swap_bytes // block_bytes
    counted_swap_bytes = num_swap_blocks * block_bytes if in_budget else 0
    room = (
        f"{share:g} x {gib(budget)} {'available' if config.memory_budget is None else 'of --memory-budget'}"
        + (f" - {gib(config.reserve_bytes)} reserved" if config.reserve_bytes else "")
        + f" = {gib(room_bytes)}"
    )

    def taken_bytes(num_blocks: int) -> int:
        activations = demand.activation_bytes(step_of(num_blocks))
        return demand.weight_bytes + activations + counted_swap_bytes + num_blocks * block_bytes

    def parts(num_blocks: int) -> str:
        step = step_of(num_blocks)
        return (
            f"{weights_text(demand)}, {gib(demand.activation_bytes(step))} of activations in a step of "
            f"{step.num_tokens:,} tokens, {gib(counted_swap_bytes)} of swap space and {num_blocks:,} KV blocks of "
            f"{block_bytes:,} bytes = {gib(num_blocks * block_bytes)}: together {gib(taken_bytes(num_blocks))}"
        )

    if demand.weight_bytes > room_bytes:
        raise InsufficientMemory(
            f"{weights_text(demand)} do not fit into {room}; free some memory, reserve less, or choose a smaller format"
        )
    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None:
        most = config.kv_cache_memory_bytes // block_bytes
        if not most:
            raise InsufficientMemory(
                f"no room for one KV block of {block_bytes:,} bytes: at most {config.kv_cache_memory_bytes:,} bytes "
                "for KV"
            )
        num_blocks = bisect_right(range(1, most + 1), room_bytes, key=taken_bytes)
    if not num_blocks or taken_bytes(num_blocks) > room_bytes:
        raise InsufficientMemory(
            f"no room: {parts(max(num_blocks, 1))}; they do not fit into {room}; free some memory, lower "
            "--swap-space-bytes, --max-num-batched-tokens or the rows of a batch, or choose a smaller format"
        )
    if taken_bytes(num_blocks) > available:
        raise InsufficientMemory(f"{parts(num_blocks)}; only {gib(available)} are available")
    step = step_of(num_blocks)
    notes = [
        f"{weights_text(demand)} ({demand.model.weight_format} on disk), of {room}",
        f"Activations: {gib(demand.activation_bytes(step))} at most, in a step of {step.num_tokens:,} tokens and "
        f"{step.num_logits:,} rows of logits",
        attention_text(demand),
        f"KV: {gib(num_blocks * block_bytes)} / {block_text(demand)} = {num_blocks:,} blocks = "
        f"{num_blocks * demand.block_size:,} tokens",
    ]
    if num_swap_blocks:
        where = f"the file {config.swap_file}" if config.swap_file else "host memory, touched when used"
        notes.append(f"Swap space: {num_swap_blocks:,} blocks = {gib(num_swap_blocks * block_bytes)} in {where}")
    return MemoryPlan(demand, num_blocks, num_swap_blocks, step, room_bytes, tuple(notes))


def weights_text(demand: Demand) -> str:
    """Parameters x bytes, for people."""
    num_parameters, num_bytes = demand.model.num_parameters, demand.weight_bytes
    return f"Weights: {num_parameters:,} parameters x {num_bytes / num_parameters:.4g} bytes = {gib(num_bytes)}"


def attention_text(demand: Demand) -> str:
    """The kind of attention and what a token takes, for people."""
    model = demand.model
    return (
        f"Attention: {model.attention_kind}, {model.num_attention_heads} query heads on {model.num_key_value_heads} "
        f"KV heads: {demand.token_bytes:,.0f} bytes of KV per token"
    )


def block_text(demand: Demand) -> str:
    """What makes up a block, for people."""
    model = demand.model
    per_value = demand.token_bytes / (model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim)
    return (
        f"({demand.block_size} tokens x {model.num_hidden_layers} layers x 2 x {model.num_key_value_heads} heads x "
        f"{model.head_dim} dims x {per_value:.5g} bytes = {demand.block_bytes:,} bytes per block)"
    )


def gib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / GIB:.2f} GiB"


def _kv_format(dtype: str, auto: str) -> str:
    return {"auto": auto, "float": "float32", "half": "float16"}.get(dtype, dtype)
