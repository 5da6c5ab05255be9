"""Programs of native kernels that do one thing again and again, and the time that it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.native import kernels
from inflight.runtime.models.base import ModelConfig

FLOAT_BYTES = 4
MIN_RUNS = 5


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured, with what, and for how long."""

    model: ModelConfig
    isa: kernels.Isa
    num_threads: int
    block_size: int = 16
    budget_s: float = 0.05  # of each program and size; at least MIN_RUNS runs whatever they take

    def program(self, num_blocks: int) -> kernels.ForwardPass:
        """An empty program over so many KV blocks."""
        return kernels.ForwardPass(self.num_threads, self.isa, self.model.vocab_size, self.block_size, num_blocks)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of the model; ``gated`` ones are followed by SwiGLU in the same operation."""

    name: str
    num_outputs: int
    num_inputs: int
    gated: bool = False


def matrices(model: ModelConfig) -> list[Matrix]:
    """The matrices of a layer, as the native model packs them, and the output matrix last."""
    q_size, kv_size = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    group = kernels.GROUP
    gate_up = 2 * group * -(-model.intermediate_size // group)
    return [
        Matrix("qkv", q_size + 2 * kv_size, model.hidden_size),
        Matrix("o", model.hidden_size, q_size),
        Matrix("gate_up", gate_up, model.hidden_size, gated=True),
        Matrix("down", model.hidden_size, model.intermediate_size),
        Matrix("logits", model.vocab_size, model.hidden_size),
    ]


def random_weights(format: str, matrix: Matrix, copies: int) -> list[kernels.Weights]:
    """Make packed weights: so many copies, each in memory of its own. ``format`` is ``int8`` or ``q4``."""
    draw = np.random.default_rng(0)
    kind = kernels.WeightFormat.INT8 if format == "int8" else kernels.WeightFormat.Q4
    packed = np.zeros(kernels.weight_bytes(kind, matrix.num_outputs, matrix.num_inputs), dtype=np.uint8)
    if format == "int8":
        kernels.pack_int8(draw.standard_normal((matrix.num_outputs, matrix.num_inputs), np.float32), packed)
    else:  # GGUF's Q4_1: a scale and a minimum in float16, then 32 numbers in 16 bytes
        blocks = draw.integers(0, 256, (matrix.num_outputs, matrix.num_inputs // 32, 20), dtype=np.uint8)
        blocks[..., :4] = np.frombuffer(np.array([0.01, -0.08], dtype=np.float16).tobytes(), dtype=np.uint8)
        rows = blocks.reshape(matrix.num_outputs, -1)
        kernels.pack_blocks(kind, kernels.BlockFormat.Q4_1, rows, matrix.num_inputs, packed)
    return [kernels.Weights(kind, packed.copy(), matrix.num_outputs, matrix.num_inputs) for _ in range(copies)]


def append_product(
    program: kernels.ForwardPass, matrix: Matrix, weights: Sequence[kernels.Weights], x: kernels.Buffer
) -> None:
    """Append a product of ``x``, quantised, with each of ``weights``, all under the matrix's name."""
    if matrix.gated:
        out = program.buffer(kernels.quantized_bytes(matrix.num_outputs // 2))
    else:
        out = program.buffer(matrix.num_outputs * FLOAT_BYTES)
    for one in weights:
        if matrix.gated:
            program.swiglu(matrix.name, x, one, out, one.basis)
        else:
            program.linear(matrix.name, x, one, out)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of ``q_len`` tokens, each after ``start`` tokens that are stored; every token wants logits."""

    num_sequences: int
    q_len: int
    start: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return self.num_sequences * self.q_len

    def num_blocks(self, block_size: int) -> int:
        """KV blocks that the sequences hold together."""
        return self.num_sequences * -(-(self.start + self.q_len) // block_size)

    def run(self, program: kernels.ForwardPass, block_size: int) -> None:
        """Run one step."""
        ones = np.ones(self.num_sequences, dtype=np.int32)
        program.run(
            np.zeros(self.num_tokens, dtype=np.int32),
            self.start * ones,
            self.q_len * ones,
            self.q_len * ones,
            np.arange(self.num_blocks(block_size), dtype=np.int32),
        )


def seconds_by_name(setup: Setup, program: kernels.ForwardPass, batch: Batch) -> dict[str, float]:
    """Seconds of all operations of one name, in the fastest run of several.

    As with the ceilings that they are held against: a neighbour slows a run down, nothing speeds it up.
    """
    batch.run(program, setup.block_size)
    runs: list[dict[str, float]] = []
    deadline_s = time.perf_counter() + setup.budget_s
    while len(runs) < MIN_RUNS or time.perf_counter() < deadline_s:
        batch.run(program, setup.block_size)
        runs.append(program.seconds())
    return min(runs, key=lambda run: sum(run.values()))


def filled(buffer: kernels.Buffer, num_rows: int) -> None:
    """Fill rows of float32 with normal numbers."""
    rows: NDArray[np.float32] = buffer.rows(num_rows).view(np.float32)
    rows[:] = np.random.default_rng(0).standard_normal(rows.shape, np.float32)


def kv_filled(setup: Setup, format: str, num_layers: int, num_blocks: int) -> tuple[kernels.KVCache, int]:
    """Make a cache that holds numbers, no zeros and none that are too small to be normal; and the bytes of a token.

    The bytes of a token are those of one layer.
    """
    model, kind = setup.model, kernels.KVFormat[format]
    shape = (setup.block_size, model.num_key_value_heads, model.head_dim)
    block_bytes = kernels.kv_block_bytes(kind, num_layers, *shape)
    data = np.full(block_bytes * num_blocks, 0x3C, dtype=np.uint8)  # 0.0115 in float32 and bfloat16, as scales too
    cache = kernels.KVCache(kind, data, num_layers, num_blocks, *shape)
    return cache, block_bytes // (num_layers * setup.block_size)
