"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU; biases and a tied output if the weights say so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inflight.runtime.attention.base import AttentionPlan
from inflight.runtime.batch import Batch
from inflight.runtime.errors import UnsupportedModel
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

        def load(name: str, *shape: int) -> Tensor:
            tensor = checkpoint.load(name, dtype)
            if tensor.shape != shape:
                raise UnsupportedModel(f"{name} is of shape {list(tensor.shape)}, by the configuration {list(shape)}")
            return tensor.to(device)

        def linear(in_features: int, *parts: tuple[str, int]) -> Linear:
            weight = torch.cat([load(f"{name}.weight", size, in_features) for name, size in parts])
            has_bias = any(f"{name}.bias" in checkpoint for name, _ in parts)
            bias = torch.cat([load(f"{name}.bias", size) for name, size in parts]) if has_bias else None
            return DenseLinear(weight, bias)

        hidden, intermediate = config.hidden_size, config.intermediate_size
        q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        if f"model.layers.{config.num_hidden_layers}.input_layernorm.weight" in checkpoint:
            raise UnsupportedModel(f"there are weights of more layers than the {config.num_hidden_layers} configured")

        self._inverse_frequencies = inverse_frequencies(config).to(device)
        self._embedding = load("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers = []
        for index in range(config.num_hidden_layers):
            prefix = f"model.layers.{index}"
            attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
            self._layers.append(
                _Layer(
                    input_norm=load(f"{prefix}.input_layernorm.weight", hidden),
                    qkv=linear(
                        hidden,
                        (f"{attention}.q_proj", q_size),
                        (f"{attention}.k_proj", kv_size),
                        (f"{attention}.v_proj", kv_size),
                    ),
                    out=linear(q_size, (f"{attention}.o_proj", hidden)),
                    post_attention_norm=load(f"{prefix}.post_attention_layernorm.weight", hidden),
                    gate_up=linear(hidden, (f"{mlp}.gate_proj", intermediate), (f"{mlp}.up_proj", intermediate)),
                    down=linear(intermediate, (f"{mlp}.down_proj", hidden)),
                )
            )
        self._final_norm = load("model.norm.weight", hidden)
        tied = config.tie_word_embeddings
        self._output = (
            DenseLinear(self._embedding, pack=False) if tied else linear(hidden, ("lm_head", config.vocab_size))
        )

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
