"""KV for the native kernels: pages of 16 tokens in one piece of memory; see ``csrc/kv.h``."""

from __future__ import annotations

from inflight.native import kernels
from inflight.runtime.huge_pages import reserve
from inflight.runtime.models.base import ModelConfig

FORMATS = {"auto": "BFLOAT16", "float32": "FLOAT32", "float": "FLOAT32", "bfloat16": "BFLOAT16", "int8": "INT8"}


def block_bytes(model: ModelConfig, block_size: int, kv_dtype: str) -> int:
    """Bytes of a block in all layers, scales included. Raises ``ValueError`` for a format or size it cannot store."""
    return kernels.kv_block_bytes(
        _format(kv_dtype), model.num_hidden_layers, block_size, model.num_key_value_heads, model.head_dim
    )


def allocate(model: ModelConfig, num_blocks: int, block_size: int, kv_dtype: str) -> kernels.KVCache:
    """Reserve the memory, without touching it: the system hands out pages when blocks are first written."""
    data = reserve(num_blocks * block_bytes(model, block_size, kv_dtype))
    return kernels.KVCache(
        _format(kv_dtype),
        data,
        model.num_hidden_layers,
        num_blocks,
        block_size,
        model.num_key_value_heads,
        model.head_dim,
    )


def _format(kv_dtype: str) -> kernels.KVFormat:
    if kv_dtype not in FORMATS:
        raise ValueError(f"kv_cache_dtype must be one of {', '.join(FORMATS)}, not {kv_dtype}")
    return kernels.KVFormat[FORMATS[kv_dtype]]
