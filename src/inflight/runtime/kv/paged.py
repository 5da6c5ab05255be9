"""KV for the native kernels: pages of 16 tokens in one piece of memory; see ``csrc/kv.h``."""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.native import kernels
from inflight.runtime.huge_pages import reserve
from inflight.runtime.models.base import ModelConfig

FORMATS = {
    "auto": "BFLOAT16",
    "float32": "FLOAT32",
    "float": "FLOAT32",
    "bfloat16": "BFLOAT16",
    "int8": "INT8",
    "int4": "INT4",
}


def block_bytes(model: ModelConfig, block_size: int, kv_dtype: str) -> int:
    """Bytes of a block in all layers, scales included. Raises ``ValueError`` for a format or size it cannot store."""
    return kernels.kv_block_bytes(
        _format(kv_dtype), model.num_hidden_layers, block_size, model.num_key_value_heads, model.head_dim
    )


class PagedBlocks:
    """See ``BlockStore``: the blocks of the memory, uint8 ``[num_layers, num_blocks, bytes of a layer]``."""

    def __init__(self, data: Tensor) -> None:
        self.num_blocks = data.shape[1]
        self.bytes_per_block = data.shape[0] * data.shape[2]
        self._data = data

    def block_parts(self, block: int) -> tuple[Tensor, ...]:
        """The pages of a block in each layer."""
        return (self._data[:, block],)


def allocate(
    model: ModelConfig, num_blocks: int, block_size: int, kv_dtype: str
) -> tuple[kernels.KVCache, PagedBlocks]:
    """Reserve the memory, without touching it: the system hands out pages when blocks are first written.

    The kernels see it as a cache, whoever copies as blocks.
    """
    data = reserve(num_blocks * block_bytes(model, block_size, kv_dtype))
    cache = kernels.KVCache(
        _format(kv_dtype),
        data,
        model.num_hidden_layers,
        num_blocks,
        block_size,
        model.num_key_value_heads,
        model.head_dim,
    )
    return cache, PagedBlocks(torch.from_numpy(data).view(model.num_hidden_layers, num_blocks, -1))


def _format(kv_dtype: str) -> kernels.KVFormat:
    if kv_dtype not in FORMATS:
        raise ValueError(f"kv_cache_dtype must be one of {', '.join(FORMATS)}, not {kv_dtype}")
    return kernels.KVFormat[FORMATS[kv_dtype]]
