"""Rotary position embedding (Su et al., arXiv:2104.09864), in the half-split layout of Hugging Face's checkpoints."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import ModelConfig

SUPPORTED = ("default", "linear", "llama3", "factors")  # "factors": one divisor per pair, how GGUF writes llama3


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each of the ``head_dim / 2`` pairs, float32. Raises ``UnsupportedModel``."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", "default")
    try:
        if kind == "linear":
            return frequencies / _positive(scaling, "factor")
        if kind == "factors":
            factors = torch.tensor(scaling["factors"], dtype=torch.float32)
            if factors.shape != frequencies.shape or not bool((factors > 0).all()):
                raise UnsupportedModel(f"rope scaling needs {len(frequencies)} factors above 0, got {factors.tolist()}")
            return frequencies / factors
        if kind == "llama3":
            if scaling["low_freq_factor"] == scaling["high_freq_factor"]:
                raise UnsupportedModel("rope scaling: low_freq_factor and high_freq_factor must differ")
            return _llama3(
                frequencies,
                _positive(scaling, "factor"),
                _positive(scaling, "low_freq_factor"),
                _positive(scaling, "high_freq_factor"),
                _positive(scaling, "original_max_position_embeddings"),
            )
    except KeyError as missing:
        raise UnsupportedModel(f"rope scaling {kind} lacks {missing}") from None
    if kind != "default":
        raise UnsupportedModel(f"rope scaling {kind} is not supported; supported: {', '.join(SUPPORTED)}")
    return frequencies


def _positive(scaling: Mapping[str, Any], key: str) -> float:
    value = scaling[key]
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise UnsupportedModel(f"rope scaling: {key} must be a number above 0, got {value!r}")
    return float(value)


def _llama3(frequencies: Tensor, factor: float, low: float, high: float, original_positions: float) -> Tensor:
    """Llama 3.1's rule: long waves are stretched by ``factor``, short ones kept, those between are blended."""
    waves = original_positions * frequencies / (2 * math.pi)  # full turns within the original context
    kept = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x [num_tokens, num_heads, head_dim]`` by ``cos``, ``sin`` ``[num_tokens, 1, head_dim / 2]``."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
