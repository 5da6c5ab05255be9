"""How many KV blocks there is room for: the arithmetic, and its lines for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from inflight.runtime.config import GIB, RuntimeConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.models.base import ModelConfig

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The KV blocks of an executor, and why there are so many."""

    num_blocks: int
    notes: tuple[str, ...]


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken now without swapping, within the limit of the process's control group (v2)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())
        available = min(available, limit - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit, which reads "max"
        pass
    return max(available, 0)


def plan_memory(
    config: RuntimeConfig,
    model: ModelConfig,
    bytes_per_parameter: float,
    bytes_per_kv_value: float,
    available: int,
) -> MemoryPlan:
    """Divide ``available`` bytes between weights and KV; scales count among the bytes of what they scale.

    Raises ``InsufficientMemory`` with the numbers.
    """
    heads, layers = model.num_key_value_heads, model.num_hidden_layers
    weight_bytes = int(model.num_parameters * bytes_per_parameter)
    token_bytes = int(layers * 2 * heads * model.head_dim * bytes_per_kv_value)
    block_bytes = token_bytes * config.block_size
    budget = int(available * config.gpu_memory_utilization)
    weights = f"Weights: {model.num_parameters:,} parameters x {bytes_per_parameter:.3g} bytes = {_gib(weight_bytes)}"
    room = f"{config.gpu_memory_utilization:g} x {_gib(available)} available = {_gib(budget)}"
    if weight_bytes > budget:
        raise InsufficientMemory(f"{weights} do not fit into {room}; free some memory or choose a smaller dtype")
    kv_bytes = min(budget - weight_bytes, config.kv_cache_memory_bytes)
    num_blocks = kv_bytes // block_bytes
    if config.num_gpu_blocks_override is not None:
        num_blocks = config.num_gpu_blocks_override
        kv_bytes = num_blocks * block_bytes
        if weight_bytes + kv_bytes > available:
            raise InsufficientMemory(
                f"{weights} and {num_blocks:,} KV blocks of {block_bytes:,} bytes = {_gib(kv_bytes)} "
                f"do not fit into the {_gib(available)} available"
            )
    if num_blocks < 1:
        raise InsufficientMemory(
            f"no room for one KV block of {block_bytes:,} bytes: {weights}; {room}; "
            f"at most {config.kv_cache_memory_bytes:,} bytes for KV"
        )
    return MemoryPlan(
        num_blocks,
        (
            f"{weights} ({model.weight_format} on disk), of {room}",
            f"Attention: {model.attention_kind}, {model.num_attention_heads} query heads on {heads} KV heads: "
            f"{token_bytes:,} bytes of KV per token",
            f"KV: {_gib(kv_bytes)} / ({config.block_size} tokens x {layers} layers x 2 x {heads} heads x "
            f"{model.head_dim} dims x {bytes_per_kv_value:.5g} bytes = {block_bytes:,} bytes per block) = "
            f"{num_blocks:,} blocks = {num_blocks * config.block_size:,} tokens",
        ),
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
