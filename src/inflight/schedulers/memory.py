"""The KV memory of a scheduler, as its configuration asks for it."""

from __future__ import annotations

from inflight.cache.contiguous import ContiguousKVCacheManager
from inflight.cache.manager import KVCacheManager
from inflight.cache.paged import PagedKVCacheManager
from inflight.cache.prefix import PrefixIndex
from inflight.schedulers.config import ContinuousConfig, RequestLevelConfig, SchedulerConfig


def make_kv_cache(
    config: SchedulerConfig, num_blocks: int, block_size: int, num_host_blocks: int = 0, hash_key: bytes = b""
) -> KVCacheManager:
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
    if isinstance(config, ContinuousConfig):
        return PagedKVCacheManager(num_left, block_size, _make_index(config, block_size, hash_key), num_host_blocks)
    return PagedKVCacheManager(num_left, block_size)


def _make_index(config: ContinuousConfig, block_size: int, hash_key: bytes) -> PrefixIndex | None:
    if config.prefix_index == "none":
        return None
    if config.prefix_index == "hash":
        from inflight.cache.prefix_hash import HashPrefixIndex

        return HashPrefixIndex(block_size, hash_key)
    from inflight.cache.prefix_radix import RadixPrefixIndex

    return RadixPrefixIndex(block_size)


def num_scratch_blocks(config: SchedulerConfig, max_model_len: int, block_size: int) -> int:
    """Blocks at the end of the memory that all pads and dead rows write: enough for one longest sequence."""
    return -(-max_model_len // block_size) if is_padded(config) else 0


def is_padded(config: SchedulerConfig) -> bool:
    """Whether its steps are rectangles, whose pads need memory of their own."""
    return isinstance(config, RequestLevelConfig) and config.padding
