"""The memory that a llama takes, from its configuration alone: what ``llama.py`` and ``llama_native.py`` will allocate.

Imports no torch, so that a model of any size can be reckoned at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight.runtime.models.base import ModelConfig

FLOAT_BYTES = TOKEN_BYTES = 4
HUGE_PAGE_BYTES = 2 * 2**20

# csrc/formats.h: weights come in groups of so many inputs of so many outputs; activations in groups of so many inputs.
GROUP, COLUMNS = 64, 32
GROUP_BYTES = {"int8": 2176, "q4": 1280}
ACTIVATION_GROUP_BYTES = 80
# csrc/isa.h, csrc/operations/attention.cpp: how a long attention is split among threads, each leaving its state.
KV_TILE, MAX_ROWS, ITEMS_PER_THREAD, STATE_HEADER = 128, 48, 8, 16

SAMPLING_COPIES = 3  # of the logits, where every row is drawn at random
TORCH_TILE_ROWS = 16  # attention/reference.py
TORCH_GATHER_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class StepSize:
    """How large a step is: its tokens, its rows that want logits, and the longest sequence among them, in tokens."""

    num_tokens: int
    num_logits: int
    max_len: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """Tensors that one product reads, joined: ``[num_outputs, num_inputs]``."""

    tensors: tuple[str, ...]  # without ".weight"
    num_outputs: int
    num_inputs: int
    by_turns: bool = False  # packed group by group, so that each tensor is padded to whole groups


def matrices(model: ModelConfig) -> Iterator[Matrix]:
    """All of them, the embedding first; a tied output is the embedding."""
    hidden, intermediate, q_size, kv_size = _sizes(model)
    yield Matrix(("model.embed_tokens",), model.vocab_size, hidden)
    for layer in range(model.num_hidden_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        yield Matrix(tuple(f"{attention}.{side}_proj" for side in "qkv"), q_size + 2 * kv_size, hidden)
        yield Matrix((f"{attention}.o_proj",), hidden, q_size)
        yield Matrix((f"{mlp}.gate_proj", f"{mlp}.up_proj"), 2 * intermediate, hidden, by_turns=True)
        yield Matrix((f"{mlp}.down_proj",), hidden, intermediate)
    if not model.tie_word_embeddings:
        yield Matrix(("lm_head",), model.vocab_size, hidden)


def count_parameters(model: ModelConfig, attention_bias: bool = False, mlp_bias: bool = False) -> int:
    """Parameters of matrices, norms and, where there are some, biases."""
    hidden, intermediate, q_size, kv_size = _sizes(model)
    layers = model.num_hidden_layers
    norms = (2 * layers + 1) * hidden
    biases = layers * (attention_bias * (q_size + 2 * kv_size + hidden) + mlp_bias * (2 * intermediate + hidden))
    return sum(matrix.num_outputs * matrix.num_inputs for matrix in matrices(model)) + norms + biases


def native_weight_bytes(model: ModelConfig, quantization: str, is_4_bit: Callable[[str], bool]) -> int:
    """Bytes of the packed matrices, scales included, and of norms and biases, which are float32.

    ``is_4_bit`` says of a tensor, without ".weight", whether it comes in 4-bit blocks: ``q4`` keeps those as they are.
    """
    total = unpacked = 0
    for matrix in matrices(model):
        stays = quantization == "q4" and all(is_4_bit(name) for name in matrix.tensors)
        num_outputs, num_parts = matrix.num_outputs, len(matrix.tensors) if matrix.by_turns else 1
        if matrix.by_turns:
            num_outputs = num_parts * _up(num_outputs // num_parts, GROUP)
        groups = -(-num_outputs // COLUMNS) * -(-matrix.num_inputs // GROUP)
        total += groups * GROUP_BYTES["q4" if stays else "int8"]
        unpacked += matrix.num_outputs * matrix.num_inputs
    return total + (model.num_parameters - unpacked) * FLOAT_BYTES


def native_buffer_bytes(model: ModelConfig, step: StepSize) -> int:
    """Bytes of the program's buffers once a step of that size has run: whole huge pages each."""
    hidden, intermediate, q_size, kv_size = _sizes(model)
    mixed = (_quantized(hidden), _quantized(q_size), _quantized(intermediate))
    of_tokens = (*(FLOAT_BYTES * size for size in (hidden, q_size + 2 * kv_size, model.head_dim, q_size)), *mixed)
    of_logits = (FLOAT_BYTES * hidden, *mixed, FLOAT_BYTES * model.vocab_size, TOKEN_BYTES)
    return sum(
        _up(row_bytes * num_rows, HUGE_PAGE_BYTES)
        for rows, num_rows in ((of_tokens, step.num_tokens), (of_logits, step.num_logits))
        for row_bytes in rows
    )


def native_activations(model: ModelConfig, num_threads: int, step: StepSize) -> dict[str, int]:
    """Bytes of a step by what they are for: the buffers, and at most what attention and sampling take beside them."""
    num_split = 0 if num_threads == 1 else num_threads * ITEMS_PER_THREAD
    num_states = num_split * MAX_ROWS * -(-step.max_len // KV_TILE)
    states = num_states * (STATE_HEADER + model.head_dim) * FLOAT_BYTES
    sampling = _sampling_bytes(model, step)
    return {"buffers": native_buffer_bytes(model, step), "attention": states, "sampling": sampling}


def torch_activations(model: ModelConfig, value_bytes: int, step: StepSize) -> dict[str, int]:
    """An upper estimate of what lives at once in a step, ``value_bytes`` for each number of the model's own tensors.

    The larger of a layer's halves counts: attention, which computes in float32, or the MLP.
    """
    hidden, intermediate, q_size, kv_size = _sizes(model)
    group = model.num_attention_heads // model.num_key_value_heads
    tile_rows = _up(group, TORCH_TILE_ROWS)
    rows = model.num_key_value_heads * tile_rows / (tile_rows // group)  # of a token, padding included
    scores = 2 * rows * KV_TILE * FLOAT_BYTES
    attended = 8 * rows * model.head_dim * FLOAT_BYTES
    attention = (hidden + 2 * q_size + 3 * kv_size) * value_bytes + scores + attended
    masks = rows / model.num_key_value_heads * _up(step.max_len, KV_TILE)  # a byte for each pair
    mlp = (3 * hidden + 4 * intermediate) * value_bytes
    of_tokens = step.num_tokens * (max(attention + masks, mlp) + 16 * model.head_dim)
    of_logits = step.num_logits * model.vocab_size * (value_bytes + 2 * FLOAT_BYTES)
    tensors = int(of_tokens + of_logits) + TORCH_GATHER_BYTES
    return {"tensors": tensors, "sampling": _sampling_bytes(model, step)}


def _sizes(model: ModelConfig) -> tuple[int, int, int, int]:
    """Hidden, intermediate, and those of queries and of keys."""
    q_size, kv_size = (n * model.head_dim for n in (model.num_attention_heads, model.num_key_value_heads))
    return model.hidden_size, model.intermediate_size, q_size, kv_size


def _sampling_bytes(model: ModelConfig, step: StepSize) -> int:
    return SAMPLING_COPIES * step.num_logits * model.vocab_size * FLOAT_BYTES


def _quantized(size: int) -> int:
    return ACTIVATION_GROUP_BYTES * -(-size // GROUP)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
