"""Engines for prompts that come again: what the prefix cache finds is not what a benchmark of speed should measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.schedulers.config import ContinuousConfig

NO_PREFIX_CACHE = "prefix cache off, since prompts come again (--enable-prefix-caching to have it)"


def without_prefix_cache(engine_values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``EngineConfig`` and its parts, with the prefix cache off where there is one and they do not say."""
    continuous = engine_values.get("scheduler", ContinuousConfig.name) == ContinuousConfig.name
    return {**({"enable_prefix_caching": False} if continuous else {}), **engine_values}
