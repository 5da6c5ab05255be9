"""The time of each kernel in the model's shapes, and what it did meanwhile: operations and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inflight.bench.programs import (
    FLOAT_BYTES,
    Batch,
    Matrix,
    Setup,
    append_product,
    filled,
    kv_filled,
    matrices,
    random_weights,
    seconds_by_name,
)
from inflight.native import kernels

HOT_WEIGHTS = 2**25  # a matrix is repeated in a program until so many weights have passed, at least twice
KV_BYTES = 2**28  # KV of so many layers that it takes about this much, so that it is as cold as in a model
NUM_REPEATS = 20
ROWS = (1, 2, 4, 8, 16, 64, 256)
DECODES = tuple((rows, context) for rows in (1, 16, 64) for context in (256, 1000, 4000))
CHUNKS = ((256, 0), (256, 1024))  # tokens, stored tokens before them
KV_FORMATS = ("FLOAT32", "BFLOAT16", "INT8", "INT4")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One execution of one kernel. Operations are counted as the model needs them, bytes as if each were moved once."""

    kernel: str
    format: str  # of the weights or of the KV
    shape: str
    num_rows: int
    seconds: float
    int8_operations: int = 0
    fp32_operations: int = 0
    num_bytes: int
    working_set_bytes: int  # what passes by until the kernel meets the same bytes again


def products(setup: Setup, format: str, rows: Sequence[int] = ROWS) -> Iterator[KernelTime]:
    """Matrix products: hot, the same matrix again and again; cold, one layer after another as in a forward pass."""
    model = setup.model
    every = matrices(model)
    cold_weights = {matrix.name: random_weights(format, matrix, _copies(setup, matrix)) for matrix in every}
    batches = [Batch(1, count) for count in rows]
    num_blocks = max(batch.num_blocks(setup.block_size) for batch in batches)
    basis = cold_weights[every[0].name][0].basis

    def inputs(program: kernels.ForwardPass) -> dict[int, kernels.Buffer]:
        """A quantised buffer of each width: products read it, nothing but the first norm writes it."""
        made = {}
        for width in {matrix.num_inputs for matrix in every}:
            x = program.buffer(width * FLOAT_BYTES)
            filled(x, max(rows))
            made[width] = program.buffer(kernels.quantized_bytes(width))
            program.rms_norm("norm", x, np.ones(width, dtype=np.float32), 1e-5, made[width], basis)
        return made

    def time(matrix: Matrix, seconds: float, count: int, where: str, working_set_bytes: int) -> KernelTime:
        weight_bytes = _weight_bytes(format, matrix)
        moved = kernels.quantized_bytes(matrix.num_inputs) + matrix.num_outputs * FLOAT_BYTES
        return KernelTime(
            kernel=f"{matrix.name} {where}",
            format=format,
            shape=f"{matrix.num_outputs} x {matrix.num_inputs}",
            num_rows=count,
            seconds=seconds,
            int8_operations=2 * count * matrix.num_outputs * matrix.num_inputs,
            num_bytes=weight_bytes + count * moved,
            working_set_bytes=working_set_bytes,
        )

    for matrix in every:
        program = setup.program(num_blocks)
        x = inputs(program)[matrix.num_inputs]
        repeats = max(2, HOT_WEIGHTS // (matrix.num_outputs * matrix.num_inputs))
        append_product(program, matrix, cold_weights[matrix.name][:1] * repeats, x)
        for batch in batches:
            seconds = seconds_by_name(setup, program, batch)[matrix.name] / repeats
            yield time(matrix, seconds, batch.num_tokens, "hot", _weight_bytes(format, matrix))
    program = setup.program(num_blocks)
    by_width = inputs(program)
    for layer in range(model.num_hidden_layers):
        for matrix in every[:-1]:
            append_product(program, matrix, [cold_weights[matrix.name][layer]], by_width[matrix.num_inputs])
    append_product(program, every[-1], cold_weights[every[-1].name], by_width[every[-1].num_inputs])
    all_bytes = sum(_copies(setup, matrix) * _weight_bytes(format, matrix) for matrix in every)
    for batch in batches:
        seconds_of = seconds_by_name(setup, program, batch)
        for matrix in every:
            seconds = seconds_of[matrix.name] / _copies(setup, matrix)
            yield time(matrix, seconds, batch.num_tokens, "cold", all_bytes)


def _copies(setup: Setup, matrix: Matrix) -> int:
    return 1 if matrix.name == "logits" else setup.model.num_hidden_layers


def _weight_bytes(format: str, matrix: Matrix) -> int:
    kind = kernels.WeightFormat.INT8 if format == "int8" else kernels.WeightFormat.Q4
    return kernels.weight_bytes(kind, matrix.num_outputs, matrix.num_inputs)


def attention(
    setup: Setup,
    format: str,
    decodes: Sequence[tuple[int, int]] = DECODES,
    chunks: Sequence[tuple[int, int]] = CHUNKS,
    kv_bytes: int = KV_BYTES,
) -> Iterator[KernelTime]:
    """Paged attention: rows that decode at a context, and a chunk of a prompt after stored tokens."""
    model, block_size = setup.model, setup.block_size
    batches = [Batch(rows, 1, context - 1) for rows, context in decodes] + [Batch(1, *chunk) for chunk in chunks]
    qkv_size = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    for batch in batches:
        num_blocks = batch.num_blocks(block_size)
        layer_bytes = kernels.kv_block_bytes(
            kernels.KVFormat[format], 1, block_size, model.num_key_value_heads, model.head_dim
        )
        num_layers = max(1, min(model.num_hidden_layers, kv_bytes // (layer_bytes * num_blocks)))
        cache, token_bytes = kv_filled(setup, format, num_layers, num_blocks)
        program = setup.program(num_blocks)
        qkv = program.buffer(qkv_size * FLOAT_BYTES)
        out = program.buffer(model.num_attention_heads * model.head_dim * FLOAT_BYTES)
        filled(qkv, batch.num_tokens)
        plan = program.attention_plan(cache, model.num_attention_heads)
        for layer in range(num_layers):
            program.attention(plan, qkv, cache, layer, out)
        seconds = seconds_by_name(setup, program, batch)["attention"] / num_layers
        num_stored = batch.num_sequences * (batch.start + batch.q_len)
        num_seen = batch.num_sequences * sum(batch.start + i + 1 for i in range(batch.q_len))
        read = num_stored * token_bytes
        moved = 2 * batch.num_tokens * model.num_attention_heads * model.head_dim * FLOAT_BYTES
        yield KernelTime(
            kernel="attention decode" if batch.q_len == 1 else "attention prefill",
            format=format.lower(),
            shape=f"context {batch.start + batch.q_len}",
            num_rows=batch.num_tokens,
            seconds=seconds,
            fp32_operations=4 * num_seen * model.num_attention_heads * model.head_dim,
            num_bytes=read + moved,
            working_set_bytes=num_layers * read,
        )


def row_kernels(setup: Setup, rows: Sequence[int] = ROWS) -> Iterator[KernelTime]:
    """What is done to each row by itself: norm and quantising, rotary and the writing of KV, the likeliest token."""
    model = setup.model
    hidden, vocab = model.hidden_size, model.vocab_size
    q_size, kv_size = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    batches = [Batch(1, count) for count in rows]
    num_blocks = max(batch.num_blocks(setup.block_size) for batch in batches)
    program = setup.program(num_blocks)
    x, normed = program.buffer(hidden * FLOAT_BYTES), program.buffer(kernels.quantized_bytes(hidden))
    qkv, angles = program.buffer((q_size + 2 * kv_size) * FLOAT_BYTES), program.buffer(model.head_dim * FLOAT_BYTES)
    logits = program.buffer(vocab * FLOAT_BYTES, kernels.Rows.LOGITS)
    best = program.buffer(FLOAT_BYTES, kernels.Rows.LOGITS)
    cache, token_bytes = kv_filled(setup, "BFLOAT16", 1, num_blocks)
    for buffer in (x, qkv, logits):
        filled(buffer, max(rows))
    program.angles(np.ones(model.head_dim // 2, dtype=np.float32), angles)
    (weights,) = random_weights("int8", Matrix("any", kernels.COLUMNS, hidden), 1)
    basis = weights.basis
    for _ in range(NUM_REPEATS):
        program.rms_norm("norm", x, np.ones(hidden, dtype=np.float32), 1e-5, normed, basis)
        program.rotary(qkv, angles, cache, 0, model.num_attention_heads)
        program.argmax(logits, vocab, best)
    per_row = {  # name in the program: kernel, numbers that it works on, operations for each, bytes
        "norm": ("rms_norm + quantise", hidden, 13, hidden * FLOAT_BYTES + kernels.quantized_bytes(hidden)),
        "rotary": ("rotary + KV write", q_size + kv_size, 3, (2 * q_size + 2 * kv_size) * FLOAT_BYTES + token_bytes),
        "argmax": ("argmax", vocab, 1, vocab * FLOAT_BYTES),
    }
    for batch in batches:
        seconds_of = seconds_by_name(setup, program, batch)
        for name, (kernel, size, operations_each, bytes_each) in per_row.items():
            yield KernelTime(
                kernel=kernel,
                format="bfloat16" if name == "rotary" else "",
                shape=str(size),
                num_rows=batch.num_tokens,
                seconds=seconds_of[name] / NUM_REPEATS,
                fp32_operations=operations_each * size * batch.num_tokens,
                num_bytes=bytes_each * batch.num_tokens,
                working_set_bytes=bytes_each * batch.num_tokens,
            )
