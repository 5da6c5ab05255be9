"""``RuntimeConfig``: how a model is loaded and what it may use. Imports no torch, so that reading it is cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
QUANTIZATIONS = ("auto", "int8", "q4", "none")
DTYPES = ("auto", "float32", "float", "bfloat16", "float16", "half")  # float is float32, half is float16
KV_CACHE_DTYPES = (*DTYPES, "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Settings of one executor; names are those of ``vllm serve``. Raises ``ValueError`` for a value out of range."""

    dtype: str = field(
        default="auto",
        metadata={"help": "weights and activations; auto and float are float32, half is float16", "choices": DTYPES},
    )
    quantization: str = field(
        default="auto",
        metadata={
            "help": "weights: int8, q4 (a GGUF's own 4-bit blocks), none (as dtype says); auto is the fastest that the "
            "native kernels have here, none if a dtype is given or there are no kernels",
            "choices": QUANTIZATIONS,
        },
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata={
            "help": "the stored keys and values; auto is as dtype, with quantised weights bfloat16",
            "choices": KV_CACHE_DTYPES,
        },
    )
    block_size: int = field(default=16, metadata={"help": "tokens in a KV block, 1 to 4096"})
    num_threads: int | None = field(
        default=None,
        metadata={"help": "threads of a forward pass, 1 to 1024; none: the physical cores that this process may use"},
    )
    memory_budget: int | None = field(
        default=None,
        metadata={"help": "bytes that the engine may plan with, from 1; none: what is free at start"},
    )
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata={"help": "share of that budget which weights, activations, host tier and KV take together, (0, 1]"},
    )
    reserve_bytes: int = field(
        default=0,
        metadata={"help": "bytes of that share, and of what is free, which are left for other programs, from 0"},
    )
    kv_cache_memory_bytes: int = field(
        default=GIB, metadata={"help": "bytes of KV, at most, however much is free, from 1: a laptop keeps its memory"}
    )
    num_gpu_blocks_override: int | None = field(
        default=None,
        metadata={"help": "exactly so many KV blocks, from 1, instead of what is left of the share"},
    )
    swap_space_bytes: int | None = field(
        default=None,
        metadata={
            "help": "the host tier: memory for the KV of preempted sequences, touched only when used; 0: none at all; "
            "none: half a GiB, or an eighth of what weights and activations leave if that is less"
        },
    )
    swap_file: Path | None = field(
        default=None, metadata={"help": "a file that is mapped for the host tier, instead of memory"}
    )
    device: str = field(default="cpu", metadata={"help": "where tensors live, as torch names it"})

    def __post_init__(self) -> None:
        for name, choices in (
            ("dtype", DTYPES),
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("quantization", QUANTIZATIONS),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        _in_range("block_size", self.block_size, 1, 4096)
        _in_range("num_threads", self.num_threads, 1, 1024)
        _in_range("memory_budget", self.memory_budget, 1, 2**63)
        _in_range("reserve_bytes", self.reserve_bytes, 0, 2**63)
        _in_range("swap_space_bytes", self.swap_space_bytes, 0, 2**63)
        _in_range("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, 2**63)
        _in_range("num_gpu_blocks_override", self.num_gpu_blocks_override, 1, 2**40)
        if type(self.gpu_memory_utilization) not in (int, float):
            raise ValueError(f"gpu_memory_utilization must be a number, got {self.gpu_memory_utilization!r}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}")
        if self.swap_file is not None and not isinstance(self.swap_file, str | Path):  # a program may give a string
            raise ValueError(f"swap_file must be a path, got {self.swap_file!r}")
        if not isinstance(self.device, str):
            raise ValueError(f"device must be a name, got {self.device!r}")


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and type(value) is not int:  # a float would reach torch, and True would be 1
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
