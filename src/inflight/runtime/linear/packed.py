"""Weights packed for the native kernels: 8 bits with a scale for 32 inputs, or a GGUF's own 4-bit blocks.

Tensors whose products read the same input become one packed matrix. It is filled piece by piece, so that a float32
copy of a large tensor is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.native import kernels
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.huge_pages import Arena
from inflight.runtime.models.base import Checkpoint

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``[start, stop)`` of a tensor, at row ``at`` of the packed matrix, a multiple of ``kernels.COLUMNS``."""

    name: str  # without ".weight"
    start: int
    stop: int
    at: int


# Tensors, without ".weight", and their numbers of rows -> pieces, and the rows of the packed matrix.
Parts = Sequence[tuple[str, int]]
Layout = Callable[[Parts], tuple[list[Piece], int]]


def one_after_the_other(parts: Parts) -> tuple[list[Piece], int]:
    """Tensors below each other. Raises ``UnsupportedModel`` for odd sizes."""
    pieces, at = [], 0
    for name, size in parts:
        if at % kernels.COLUMNS:
            raise UnsupportedModel(f"{name} does not begin at a multiple of {kernels.COLUMNS} outputs")
        for start in range(0, size, ROWS_AT_ONCE):
            pieces.append(Piece(name, start, min(start + ROWS_AT_ONCE, size), at + start))
        at += size
    return pieces, at


def by_turns(parts: Parts) -> tuple[list[Piece], int]:
    """Groups of rows of two tensors of one size, in turns; both are padded with zeros to whole groups."""
    group = kernels.GROUP
    (_, size), _ = parts
    pieces = [
        Piece(name, start, min(start + group, size), 2 * start + group * which)
        for start in range(0, size, group)
        for which, (name, _) in enumerate(parts)
    ]
    return pieces, 2 * (size + -size % group)


def pack(
    checkpoint: Checkpoint, parts: Parts, layout: Layout, num_inputs: int, quantization: str, arena: Arena
) -> kernels.Weights:
    """Pack tensors into one matrix; ``quantization`` is ``int8``, or ``q4``: 4 bits for tensors that come in them.

    Raises ``UnsupportedModel`` for a tensor that is missing or of another shape.
    """
    for name, size in parts:
        _check_shape(checkpoint, f"{name}.weight", (size, num_inputs))
    pieces, num_outputs = layout(parts)
    blocks = {name: checkpoint.load_blocks(f"{name}.weight") for name, _ in parts}
    stays_4_bit = quantization == "q4" and None not in blocks.values()
    format = kernels.WeightFormat.Q4 if stays_4_bit else kernels.WeightFormat.INT8
    block_bytes = kernels.weight_bytes(format, kernels.COLUMNS, num_inputs)
    packed = arena.take(kernels.weight_bytes(format, num_outputs, num_inputs))
    for piece in pieces:
        first, num_rows = piece.at // kernels.COLUMNS, piece.stop - piece.start
        last = first + -(-num_rows // kernels.COLUMNS)
        out = packed[first * block_bytes : last * block_bytes]
        found = blocks[piece.name]
        if found is None:
            rows = checkpoint.load(f"{piece.name}.weight", torch.float32, slice(piece.start, piece.stop))
            kernels.pack_int8(rows.numpy(), out)
        else:
            kind, data = found
            kernels.pack_blocks(format, kernels.BlockFormat[kind], data[piece.start : piece.stop], num_inputs, out)
    return kernels.Weights(format, packed, num_outputs, num_inputs, _load_bias(checkpoint, parts, pieces, num_outputs))


def _check_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    found = checkpoint.shape(name)
    if found != shape:
        raise UnsupportedModel(f"{name} is of shape {list(found)}, by the configuration {list(shape)}")


def _load_bias(
    checkpoint: Checkpoint, parts: Parts, pieces: Sequence[Piece], num_outputs: int
) -> NDArray[np.float32] | None:
    if not any(f"{name}.bias" in checkpoint for name, _ in parts):
        return None
    for name, size in parts:
        _check_shape(checkpoint, f"{name}.bias", (size,))
    bias = np.zeros(num_outputs + -num_outputs % kernels.COLUMNS, dtype=np.float32)
    for piece in pieces:
        values = checkpoint.load(f"{piece.name}.bias", torch.float32, slice(piece.start, piece.stop))
        bias[piece.at : piece.at + len(values)] = values.numpy()
    return bias
