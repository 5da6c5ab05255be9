"""What a model takes of memory, whatever there is of it: weights, activations and KV, from its configuration alone.

Serving and ``inflight plan memory`` use the same functions. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight.runtime.config import GIB, RuntimeConfig
from inflight.runtime.models.llama_sizes import (
    StepSize,
    native_activations,
    native_weight_bytes,
    torch_activations,
)

if TYPE_CHECKING:
    from inflight.runtime.models.base import ModelConfig

# Bits of a number, and whether a scale of 16 bits comes with KV_GROUP of them; see csrc/kv.h.
KV_FORMATS = {
    "float32": (32, False),
    "bfloat16": (16, False),
    "float16": (16, False),
    "int8": (8, True),
    "int4": (4, True),
}
KV_GROUP = 32
COMMON_BYTES = 2  # of a weight and of a KV number, in the formula that is commonly used


@dataclass(frozen=True, slots=True)
class Activations:
    """The peak of a step in bytes: its buffers, and at most so much beside them, by what it is for."""

    buffer_bytes: int
    at_most_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """What is planned for."""
        return self.buffer_bytes + sum(self.at_most_bytes.values())


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model takes of memory."""

    model: ModelConfig
    weight_bytes: int
    kv_format: str  # one of KV_FORMATS
    block_size: int
    activations: Callable[[StepSize], Activations]

    @property
    def token_bytes(self) -> float:
        """KV of one token in all layers."""
        return kv_token_bytes(self.model, self.kv_format)

    @property
    def block_bytes(self) -> int:
        """KV of one block in all layers."""
        return int(self.token_bytes * self.block_size)

    def activation_bytes(self, step: StepSize) -> int:
        """The peak of a step."""
        return self.activations(step).total_bytes


def kv_token_bytes(model: ModelConfig, kv_format: str) -> float:
    """KV of one token in all layers, scales included: it counts KV heads, which grouped queries share."""
    bits, scaled = KV_FORMATS[kv_format]
    head_bytes = model.head_dim * bits / 8 + scaled * 2 * -(-model.head_dim // KV_GROUP)
    return model.num_hidden_layers * 2 * model.num_key_value_heads * head_bytes


def common_kv_token_bytes(model: ModelConfig) -> int:
    """The same by the common formula, 2 x hidden_size x layers x 2 bytes, which is right only without grouping."""
    return 2 * model.hidden_size * model.num_hidden_layers * COMMON_BYTES


def native_demand(
    model: ModelConfig,
    config: RuntimeConfig,
    quantization: str,
    num_threads: int,
    is_4_bit: Callable[[str], bool],
) -> Demand:
    """What the model takes in the native kernels; see ``native_weight_bytes``."""
    return Demand(
        model,
        native_weight_bytes(model, quantization, is_4_bit),
        _kv_format(config.kv_cache_dtype, "bfloat16"),
        config.block_size,
        lambda step: _with_buffers("buffers", native_activations(model, num_threads, step)),
    )


def torch_demand(model: ModelConfig, config: RuntimeConfig) -> Demand:
    """What the model takes in torch, whose temporary tensors are the buffers."""
    dtype = _kv_format(config.dtype, "float32")
    value_bytes = KV_FORMATS[dtype][0] // 8
    return Demand(
        model,
        model.num_parameters * value_bytes,
        _kv_format(config.kv_cache_dtype, dtype),
        config.block_size,
        lambda step: _with_buffers("tensors", torch_activations(model, value_bytes, step)),
    )


def weights_text(demand: Demand) -> str:
    """Parameters x bytes, for people."""
    num_parameters, num_bytes = demand.model.num_parameters, demand.weight_bytes
    return f"Weights: {num_parameters:,} parameters x {num_bytes / num_parameters:.4g} bytes = {gib(num_bytes)}"


def attention_text(demand: Demand) -> str:
    """The kind of attention and what a token takes, for people."""
    model = demand.model
    return (
        f"Attention: {model.attention_kind}, {model.num_attention_heads} query heads on {model.num_key_value_heads} "
        f"KV heads: {demand.token_bytes:,.0f} bytes of KV per token"
    )


def block_text(demand: Demand) -> str:
    """What makes up a block, for people."""
    model = demand.model
    per_value = demand.token_bytes / (model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim)
    return (
        f"({demand.block_size} tokens x {model.num_hidden_layers} layers x 2 x {model.num_key_value_heads} heads x "
        f"{model.head_dim} dims x {per_value:.5g} bytes = {demand.block_bytes:,} bytes per block)"
    )


def gib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / GIB:.2f} GiB"


def _with_buffers(name: str, parts: Mapping[str, int]) -> Activations:
    return Activations(parts[name], {what: size for what, size in parts.items() if what != name})


def _kv_format(dtype: str, auto: str) -> str:
    return {"auto": auto, "float": "float32", "half": "float16"}.get(dtype, dtype)
