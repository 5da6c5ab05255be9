"""The families of schedulers by name; each is imported when it is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.core.scheduler import Scheduler
from inflight.schedulers.config import (
    ContinuousConfig,
    DynamicConfig,
    RequestLevelConfig,
    SchedulerConfig,
    StaticConfig,
)

CONFIGS: dict[str, type[SchedulerConfig]] = {
    config.name: config for config in (ContinuousConfig, StaticConfig, DynamicConfig)
}


def make_scheduler(
    config: SchedulerConfig, num_blocks: int, block_size: int, num_host_blocks: int = 0, hash_key: bytes = b""
) -> Scheduler:
    """A scheduler over so much KV memory, with so many blocks in the host tier.

    ``hash_key``, of up to 64 bytes, is the secret of the prefix cache's digests; no decision depends on it. Raises
    ``ValueError`` if the memory is too small or a limit undecided.
    """
    if isinstance(config, RequestLevelConfig):
        from inflight.schedulers.request_level import RequestLevelScheduler

        return RequestLevelScheduler(config, num_blocks, block_size)
    if isinstance(config, ContinuousConfig):
        from inflight.schedulers.continuous import ContinuousScheduler

        return ContinuousScheduler(config, num_blocks, block_size, num_host_blocks, hash_key)
    raise TypeError(f"no scheduler takes a {type(config).__name__}")


def config_from_log(name: str, values: Mapping[str, Any]) -> SchedulerConfig:
    """The configuration that a step log names. Raises ``ValueError`` if this version does not know it."""
    if name not in CONFIGS:
        raise ValueError(f"scheduler {name!r} is not known; there are: {', '.join(CONFIGS)}")
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return CONFIGS[name](**plain)
    except TypeError as error:
        raise ValueError(f"the configuration of scheduler {name!r} is of another version: {error}") from error
