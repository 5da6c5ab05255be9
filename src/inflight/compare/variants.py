"""The variants of batching that a comparison runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from inflight.compare.config import CompareConfig
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to batch that is run; ``name`` is its key in the results, ``title`` what people read."""

    name: str
    title: str
    scheduler: SchedulerConfig

    @property
    def family(self) -> str:
        """Static, dynamic or continuous."""
        return self.scheduler.name


def variants(config: CompareConfig) -> list[Variant]:
    """What is run, in the order in which it is shown; limits that depend on the model are still open.

    Raises ``ValueError`` for settings that a scheduler refuses.
    """
    shared: dict[str, Any] = {"max_model_len": config.max_model_len, "max_num_waiting_seqs": None}
    static = StaticConfig(batch_size=config.num_seats, fill_timeout_ms=config.fill_timeout_ms, **shared)
    dynamic = DynamicConfig(max_batch_size=config.num_seats, max_wait_ms=config.max_wait_ms, **shared)
    continuous = continuous_config(config)
    unchunked = replace(continuous, enable_chunked_prefill=False, max_num_batched_tokens=None)
    every = [Variant("static", "static", static)]
    if config.with_no_padding:
        every.append(Variant("static_ragged", "static, no padding", replace(static, padding=False)))
    every.append(Variant("dynamic", "dynamic", dynamic))
    if config.with_no_padding:
        every.append(Variant("dynamic_ragged", "dynamic, no padding", replace(dynamic, padding=False)))
    every += [
        Variant("continuous", "continuous", continuous),
        Variant("continuous_unchunked", "continuous, whole prompts", unchunked),
    ]
    if config.with_contiguous:
        contiguous = replace(continuous, kv_allocator="contiguous")
        every.append(Variant("continuous_contiguous", "continuous, contiguous KV", contiguous))
    return [variant for variant in every if variant.family in config.chosen]


def continuous_config(config: CompareConfig) -> ContinuousConfig:
    """Continuous batching with chunked prefill: also what the offered load is measured against.

    It has no prefix cache, as the other families have none: batching is compared, and nothing else.
    """
    return ContinuousConfig(
        max_num_seqs=config.num_seats,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        max_num_waiting_seqs=None,
        enable_prefix_caching=False,
    )
