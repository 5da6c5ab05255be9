"""Llama as a program of native kernels; the same model as ``llama.py``, where the arithmetic can be read in torch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.native import kernels
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.huge_pages import Arena
from inflight.runtime.linear.packed import Layout, by_turns, one_after_the_other, pack
from inflight.runtime.models.base import Checkpoint
from inflight.runtime.models.rope import inverse_frequencies

FLOAT_BYTES = TOKEN_BYTES = 4


def build_llama(
    checkpoint: Checkpoint, quantization: str, program: kernels.ForwardPass, kv: kernels.KVCache
) -> tuple[kernels.Buffer, kernels.Buffer]:
    """Append the model's operations to ``program``; return its buffers of logits and of the likeliest tokens.

    Raises ``UnsupportedModel``.
    """
    config = checkpoint.config
    hidden_size, intermediate_size, vocab_size = config.hidden_size, config.intermediate_size, config.vocab_size
    num_heads, num_kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    if f"model.layers.{config.num_hidden_layers}.input_layernorm.weight" in checkpoint:
        raise UnsupportedModel(f"there are weights of more layers than the {config.num_hidden_layers} configured")

    arena = Arena()

    def norm(name: str) -> NDArray[np.float32]:
        weight = checkpoint.load(f"{name}.weight", torch.float32)
        if weight.shape != (hidden_size,):
            raise UnsupportedModel(f"{name} is of shape {list(weight.shape)}, by the configuration {[hidden_size]}")
        return weight.numpy()

    def weights(num_inputs: int, *parts: tuple[str, int], layout: Layout = one_after_the_other) -> kernels.Weights:
        return pack(checkpoint, parts, layout, num_inputs, quantization, arena)

    def floats(size: int, rows: kernels.Rows = kernels.Rows.TOKENS) -> kernels.Buffer:
        return program.buffer(size * FLOAT_BYTES, rows)

    def quantized(size: int, rows: kernels.Rows = kernels.Rows.TOKENS) -> kernels.Buffer:
        return program.buffer(kernels.quantized_bytes(size), rows)

    every, wanted = kernels.Rows.TOKENS, kernels.Rows.LOGITS
    hidden, qkv, angles, attended = (floats(size) for size in (hidden_size, q_size + 2 * kv_size, head_dim, q_size))
    normed, mixed, activated = quantized(hidden_size), quantized(q_size), quantized(intermediate_size)
    embedding = weights(hidden_size, ("model.embed_tokens", vocab_size))
    program.embedding(embedding, hidden)
    program.angles(inverse_frequencies(config).numpy(), angles)
    attention = program.attention_plan(kv, num_heads)
    rows, eps = every, config.rms_norm_eps
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        heads = {"q": q_size, "k": kv_size, "v": kv_size}
        qkv_weights = weights(hidden_size, *((f"{prefix}.self_attn.{name}_proj", size) for name, size in heads.items()))
        out = weights(q_size, (f"{prefix}.self_attn.o_proj", hidden_size))
        gate_and_up = ((f"{prefix}.mlp.{name}_proj", intermediate_size) for name in ("gate", "up"))
        gate_up = weights(hidden_size, *gate_and_up, layout=by_turns)
        down = weights(intermediate_size, (f"{prefix}.mlp.down_proj", hidden_size))

        program.rms_norm("norm", hidden, norm(f"{prefix}.input_layernorm"), eps, normed, qkv_weights.basis)
        program.linear("qkv", normed, qkv_weights, qkv)
        program.rotary(qkv, angles, kv, layer, num_heads)
        program.attention(attention, qkv, kv, layer, attended)
        program.attention_output(attention, attended, mixed, out.basis)
        if layer == config.num_hidden_layers - 1:  # whoever wants no logits has nothing to do after its last KV
            every_hidden, every_mixed, rows = hidden, mixed, wanted
            hidden, mixed = floats(hidden_size, rows), quantized(q_size, rows)
            normed, activated = quantized(hidden_size, rows), quantized(intermediate_size, rows)
            program.select(every_hidden, hidden)
            program.select(every_mixed, mixed)
        program.linear("o", mixed, out, hidden, add=True, rows=rows)
        post_norm = norm(f"{prefix}.post_attention_layernorm")
        program.rms_norm("norm", hidden, post_norm, eps, normed, gate_up.basis, rows)
        program.swiglu("gate_up", normed, gate_up, activated, down.basis, rows)
        program.linear("down", activated, down, hidden, add=True, rows=rows)
    logits, best = floats(vocab_size, wanted), program.buffer(TOKEN_BYTES, wanted)
    output = embedding
    if not config.tie_word_embeddings:
        output = weights(hidden_size, ("lm_head", vocab_size))
    program.rms_norm("norm", hidden, norm("model.norm"), eps, normed, output.basis, rows)
    program.linear("logits", normed, output, logits, rows=rows)
    program.argmax(logits, vocab_size, best)
    return logits, best
