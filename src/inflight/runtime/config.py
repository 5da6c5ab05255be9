"""``RuntimeConfig``: how a model is loaded and what it may use. Imports no torch, so that reading it is cheap."""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 2**30
QUANTIZATIONS = ("auto", "int8", "q4", "none")
DTYPES = ("auto", "float32", "float", "bfloat16", "float16", "half")  # float is float32, half is float16
KV_CACHE_DTYPES = (*DTYPES, "int8")


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
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata={"help": "share of the memory that is free at start which weights and KV may take together, (0, 1]"},
    )
    kv_cache_memory_bytes: int = field(
        default=GIB, metadata={"help": "bytes of KV, at most, however much is free, from 1: a laptop keeps its memory"}
    )
    num_gpu_blocks_override: int | None = field(
        default=None, metadata={"help": "exactly so many KV blocks, from 1, instead of what the two above give"}
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
        _in_range("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, 2**63)
        _in_range("num_gpu_blocks_override", self.num_gpu_blocks_override, 1, 2**40)
        if type(self.gpu_memory_utilization) not in (int, float):
            raise ValueError(f"gpu_memory_utilization must be a number, got {self.gpu_memory_utilization!r}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}")
        if not isinstance(self.device, str):
            raise ValueError(f"device must be a name, got {self.device!r}")


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and type(value) is not int:  # a float would reach torch, and True would be 1
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
