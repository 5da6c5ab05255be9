"""What a model is to the runtime: its facts, its weights by name, and one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inflight.runtime.attention.base import AttentionPlan
from inflight.runtime.batch import Batch
from inflight.runtime.kv.base import KVStore

ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts of an architecture, under the names of Hugging Face's ``config.json``."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int  # tokens of prompt and output together
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None  # None, or "rope_type" (see models/rope.py) and its settings
    tie_word_embeddings: bool
    num_parameters: int
    weight_format: str  # as stored in the checkpoint, for people: "Q4_1", "bfloat16"

    @property
    def attention_kind(self) -> str:
        """MHA: a KV head per query head; GQA: one for several; MQA: one for all."""
        if self.num_key_value_heads == self.num_attention_heads:
            return "MHA"
        return "MQA" if self.num_key_value_heads == 1 else "GQA"


class Checkpoint(Protocol):
    """Weights on disk under Hugging Face's names; nothing is read before it is asked for."""

    config: ModelConfig

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor. Raises ``UnsupportedModel`` if it is missing."""

    def load(self, name: str, dtype: torch.dtype, rows: slice = ALL_ROWS) -> Tensor:
        """Read one tensor, or some of its rows, converted to ``dtype``.

        Raises ``UnsupportedModel`` if it is missing.
        """

    def has_blocks(self, name: str) -> bool:
        """Whether ``load_blocks`` would give some: read from the tensor's facts, not from the tensor."""

    def load_blocks(self, name: str) -> tuple[str, NDArray[np.uint8]] | None:
        """Read the rows of a tensor of 4-bit blocks as they are stored: format, bytes ``[rows, row_bytes]``.

        The format is ``Q4_0`` or ``Q4_1``, as GGUF defines them; None for a tensor in any other.
        """


class Model(Protocol):
    """Weights in memory and the arithmetic of one step."""

    def forward(self, batch: Batch, plan: AttentionPlan, kv: KVStore) -> Tensor:
        """Run one step: writes the KV of its tokens; returns float32 logits ``[len(logit_rows), vocab_size]``."""
