"""The KV memory of a scheduler, as its configuration asks for it."""

from __future__ import annotations

from inflight.cache.contiguous import ContiguousKVCacheManager
from inflight.cache.manager import KVCacheManager
from inflight.cache.paged import PagedKVCacheManager
from inflight.schedulers.config import RequestLevelConfig, SchedulerConfig


def make_kv_cache(config: SchedulerConfig, num_blocks: int, block_size: int) -> KVCacheManager:
    """Blocks for sequences. Raises ``ValueError`` if the longest sequence alone could outgrow them."""
    if config.max_model_len is None:
        raise ValueError("max_model_len must be decided before a scheduler is made")
    num_scratch = num_scratch_blocks(config, config.max_model_len, block_size)
    num_left = num_blocks - num_scratch
    if config.max_model_len > num_left * block_size:
        less = f", less {num_scratch} for padding" if num_scratch else ""
        raise ValueError(
            f"max_model_len is {config.max_model_len} tokens, but the KV cache holds {max(num_left, 0) * block_size} "
            f"({num_blocks} blocks of {block_size}{less})"
        )
    if config.kv_allocator == "contiguous":
        return ContiguousKVCacheManager(num_left, block_size, config.max_model_len)
    return PagedKVCacheManager(num_left, block_size)


def num_scratch_blocks(config: SchedulerConfig, max_model_len: int, block_size: int) -> int:
    """Blocks at the end of the memory that all pads and dead rows write: enough for one longest sequence."""
    return -(-max_model_len // block_size) if is_padded(config) else 0


def is_padded(config: SchedulerConfig) -> bool:
    """Whether its steps are rectangles, whose pads need memory of their own."""
    return isinstance(config, RequestLevelConfig) and config.padding
