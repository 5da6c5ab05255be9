"""From a checkpoint on disk to an executor that is ready to run steps."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

from inflight.engine.executor import KVCapacity
from inflight.native import isa, kernels
from inflight.runtime.calibrate import MAX_TOKENS
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import InsufficientMemory, UnsupportedModel
from inflight.runtime.forward import ForwardPass
from inflight.runtime.freed_memory import give_back
from inflight.runtime.kv import paged
from inflight.runtime.kv.base import BlockStore, KVStore
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.kv.formats import GROUP_FORMATS
from inflight.runtime.kv.grouped import GroupedKV
from inflight.runtime.kv.host_tier import HostBlocks
from inflight.runtime.linear.choice import choose_quantization
from inflight.runtime.linear.dense import is_emulated
from inflight.runtime.memory import available_bytes, demand_of
from inflight.runtime.memory_plan import LargestStep, MemoryPlan, plan_memory, plan_notes
from inflight.runtime.models.base import Checkpoint
from inflight.runtime.models.llama_sizes import StepSize
from inflight.runtime.models.registry import load_model, native_builder
from inflight.runtime.native_forward import NativeForward
from inflight.runtime.runner import ModelExecutor
from inflight.runtime.torch_forward import TorchForward

TORCH_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
USUAL_NUM_SEQS = 32  # rows of logits: a scheduler's max_num_seqs unless it is told otherwise


def usual_step(max_len: int, num_blocks: int) -> StepSize:
    """The largest step that ``calibrate`` tries: a ``LargestStep`` for those who run steps of their own."""
    return StepSize(MAX_TOKENS, USUAL_NUM_SEQS, max_len)


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


def find_device(name: str) -> torch.device:
    """The device of that name. Raises ``ValueError`` if it is not here."""
    here = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        kind = accelerator.type
        here += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if name not in here:
        raise ValueError(f"device must be one that is here ({', '.join(here)}), got {name!r}")
    return torch.device(name)


def load_executor(path: Path, config: RuntimeConfig, largest_step: LargestStep = usual_step) -> ModelExecutor:
    """Load a model; sets torch's threads for the process. Memory is planned for ``largest_step``.

    Raises ``UnsupportedModel``, ``InsufficientMemory``, or ``ValueError`` for a setting that cannot be had here.
    """
    device = find_device(config.device)
    torch.set_num_threads(config.num_threads or default_num_threads())
    checkpoint = open_checkpoint(path)
    try:
        quantization, why = choose_quantization(config, device, checkpoint)
        demand = demand_of(checkpoint, config, quantization, torch.get_num_threads())
        memory = plan_memory(config, demand, largest_step, available_bytes(device))
        load = _load_torch if quantization == "none" else _load_native
        forward, notes = load(checkpoint, config, device, quantization, memory)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InsufficientMemory(f"the model does not fit: {error}") from error
    give_back()  # what loading has freed, up to a fifth of the weights
    return ModelExecutor(forward, checkpoint.config, device, (why, *notes))


def _load_torch(
    checkpoint: Checkpoint, config: RuntimeConfig, device: torch.device, _: str, memory: MemoryPlan
) -> tuple[ForwardPass, tuple[str, ...]]:
    model_config = checkpoint.config
    dtype = torch.float32 if config.dtype == "auto" else TORCH_DTYPES[config.dtype]
    kv_shape = (
        memory.num_blocks,
        config.block_size,
        model_config.num_hidden_layers,
        model_config.num_key_value_heads,
        model_config.head_dim,
    )
    kv: KVStore
    with torch.inference_mode():
        if config.kv_cache_dtype in GROUP_FORMATS:
            kv = GroupedKV(*kv_shape, GROUP_FORMATS[config.kv_cache_dtype], device)
        else:
            kv = DenseKV(*kv_shape, TORCH_DTYPES.get(config.kv_cache_dtype, dtype), device)  # auto is as dtype
        model = load_model(checkpoint, dtype, device)
    notes = plan_notes(memory)
    if is_emulated(dtype, device):
        name = str(dtype).removeprefix("torch.")
        notes += (
            f"{name} is emulated on this CPU: weights take half the memory, but steps are slower than in float32",
        )
    host = _host_blocks(kv, config, device, memory)
    return TorchForward(model, model_config.num_attention_heads, kv, host, device), notes


def _load_native(
    checkpoint: Checkpoint, config: RuntimeConfig, device: torch.device, quantization: str, memory: MemoryPlan
) -> tuple[ForwardPass, tuple[str, ...]]:
    model_config = checkpoint.config
    kv_dtype = config.kv_cache_dtype
    num_threads = torch.get_num_threads()
    program = kernels.ForwardPass(num_threads, isa(), model_config.vocab_size, config.block_size, memory.num_blocks)
    kv, blocks = paged.allocate(model_config, memory.num_blocks, config.block_size, kv_dtype)
    logits, best = native_builder(model_config.architecture)(checkpoint, quantization, program, kv)
    host = _host_blocks(blocks, config, device, memory)
    capacity = KVCapacity(memory.num_blocks, config.block_size, blocks.bytes_per_block, host.num_blocks)
    return NativeForward(program, logits, best, host, capacity, num_threads), plan_notes(memory)


def _host_blocks(kv: BlockStore, config: RuntimeConfig, device: torch.device, memory: MemoryPlan) -> HostBlocks:
    file = None if config.swap_file is None else Path(config.swap_file)  # a program may have given a string
    return HostBlocks(kv, memory.num_host_blocks, device, file)
