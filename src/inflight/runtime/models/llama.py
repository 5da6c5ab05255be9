"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU; biases and a tied output if the weights say so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inflight.runtime.attention.base import AttentionPlan
from inflight.runtime.batch import Batch
from inflight.runtime.kv.base import KVStore
from inflight.runtime.linear.base import Linear
from inflight.runtime.linear.dense import DenseLinear
from inflight.runtime.models.base import Checkpoint
from inflight.runtime.models.rope import inverse_frequencies, rotate


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    out: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaForCausalLM:
    """See ``Model``. Products that read the same input are one product over joined weights."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config = checkpoint.config
        self._num_rotated = config.num_attention_heads + config.num_key_value_heads

        def load(name: str) -> Tensor:
            return checkpoint.load(name, dtype).to(device)

        def linear(*names: str) -> Linear:
            bias = torch.cat([load(f"{name}.bias") for name in names]) if f"{names[0]}.bias" in checkpoint else None
            return DenseLinear(torch.cat([load(f"{name}.weight") for name in names]), bias)

        self._inverse_frequencies = inverse_frequencies(config).to(device)
        self._embedding = load("model.embed_tokens.weight")
        self._layers = []
        for index in range(config.num_hidden_layers):
            prefix = f"model.layers.{index}"
            attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
            self._layers.append(
                _Layer(
                    input_norm=load(f"{prefix}.input_layernorm.weight"),
                    qkv=linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
                    out=linear(f"{attention}.o_proj"),
                    post_attention_norm=load(f"{prefix}.post_attention_layernorm.weight"),
                    gate_up=linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
                    down=linear(f"{mlp}.down_proj"),
                )
            )
        self._final_norm = load("model.norm.weight")
        tied = config.tie_word_embeddings
        self._output = DenseLinear(self._embedding, pack=False) if tied else linear("lm_head")

    def forward(self, batch: Batch, plan: AttentionPlan, kv: KVStore) -> Tensor:
        """Run one step; see ``Model``."""
        config = self._config
        hidden = F.embedding(batch.token_ids, self._embedding)
        angles = batch.positions.float()[:, None] * self._inverse_frequencies
        cos, sin = (wave.to(hidden.dtype)[:, None] for wave in (angles.cos(), angles.sin()))
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._norm(hidden, layer.input_norm)).view(hidden.shape[0], -1, config.head_dim)
            q, k = rotate(qkv[:, : self._num_rotated], cos, sin).tensor_split([config.num_attention_heads], dim=1)
            kv.write(index, batch.slots, k, qkv[:, self._num_rotated :])
            hidden = hidden + layer.out(plan.run(index, q, kv).flatten(1))
            gate, up = layer.gate_up(self._norm(hidden, layer.post_attention_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        if not len(batch.logit_rows):
            return hidden.new_empty((0, config.vocab_size), dtype=torch.float32)
        return self._output(self._norm(hidden[batch.logit_rows], self._final_norm)).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._config.rms_norm_eps)
