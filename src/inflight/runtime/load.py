"""From a checkpoint on disk to an executor that is ready to run steps."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import InsufficientMemory, UnsupportedModel
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.linear.dense import is_emulated
from inflight.runtime.memory import available_bytes, plan_memory
from inflight.runtime.models.base import Checkpoint
from inflight.runtime.models.registry import load_model
from inflight.runtime.runner import TorchExecutor

TORCH_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


def default_num_threads() -> int:
    """Physical cores, or the processors that this process may run on if those are fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the facts of a model: a ``.gguf`` file, or a folder of safetensors. Raises ``UnsupportedModel``."""
    # Imported here: each brings its own library, and a process needs only one of them.
    if path.suffix.lower() == ".gguf" and path.is_file():
        from inflight.runtime.weights.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path)
    if path.is_dir():
        from inflight.runtime.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    raise UnsupportedModel(f"{path} is neither a .gguf file nor a folder with config.json and .safetensors files")


def _find_device(name: str) -> torch.device:
    here = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        kind = accelerator.type
        here += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if name not in here:
        raise ValueError(f"device must be one that is here ({', '.join(here)}), got {name!r}")
    return torch.device(name)


def load_executor(path: Path, config: RuntimeConfig) -> TorchExecutor:
    """Load a model; sets torch's threads for the process.

    Raises ``UnsupportedModel``, ``InsufficientMemory``, or ``ValueError`` for a device that is not there.
    """
    device = _find_device(config.device)
    torch.set_num_threads(config.num_threads or default_num_threads())
    checkpoint = open_checkpoint(path)
    model_config = checkpoint.config
    dtype = torch.float32 if config.dtype == "auto" else TORCH_DTYPES[config.dtype]
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else TORCH_DTYPES[config.kv_cache_dtype]
    memory = plan_memory(config, model_config, dtype, kv_dtype, available_bytes(device))
    try:
        with torch.inference_mode():
            model = load_model(checkpoint, dtype, device)
            kv = DenseKV(
                memory.num_blocks,
                config.block_size,
                model_config.num_hidden_layers,
                model_config.num_key_value_heads,
                model_config.head_dim,
                kv_dtype,
                device,
            )
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InsufficientMemory(f"the model does not fit: {error}; {'; '.join(memory.notes)}") from error
    notes = memory.notes
    if is_emulated(dtype, device):
        name = str(dtype).removeprefix("torch.")
        notes += (
            f"{name} is emulated on this CPU: weights take half the memory, but steps are slower than in float32",
        )
    return TorchExecutor(model, model_config, kv, device, notes)
