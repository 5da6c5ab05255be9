"""The memory that there is, and the memory that a checkpoint will take; ``memory_plan.py`` divides it."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from inflight.runtime.config import RuntimeConfig
from inflight.runtime.memory_demand import Demand, native_demand, torch_demand
from inflight.runtime.models.base import Checkpoint

CGROUP = Path("/sys/fs/cgroup")


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


def demand_of(checkpoint: Checkpoint, config: RuntimeConfig, quantization: str, num_threads: int) -> Demand:
    """What a checkpoint takes in the weights that were chosen; see ``choose_quantization``."""
    if quantization == "none":
        return torch_demand(checkpoint.config, config)

    def is_4_bit(name: str) -> bool:
        return checkpoint.has_blocks(f"{name}.weight")

    return native_demand(checkpoint.config, config, quantization, num_threads, is_4_bit)
