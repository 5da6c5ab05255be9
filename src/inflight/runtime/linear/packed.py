"""Weights packed for the native kernels: 8 bits in groups of 64 inputs, or a GGUF's own 4-bit blocks.

Tensors whose products read the same input become one packed matrix. It is filled piece by piece, so that a float32
copy of a large tensor is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def one_after_the_other(parts: Sequence[tuple[str, int]]) -> list[Piece]:
    """Tensors, given with their numbers of rows, below each other. Raises ``UnsupportedModel`` for odd sizes."""
    pieces, at = [], 0
    for name, size in parts:
        if at % kernels.COLUMNS:
            raise UnsupportedModel(f"{name} does not begin at a multiple of {kernels.COLUMNS} outputs")
        for start in range(0, size, ROWS_AT_ONCE):
            pieces.append(Piece(name, start, min(start + ROWS_AT_ONCE, size), at + start))
        at += size
    return pieces


def by_turns(first: str, second: str, size: int) -> list[Piece]:
    """Groups of rows of two tensors of ``size`` rows, in turns; both are padded with zeros to whole groups."""
    group = kernels.GROUP
    return [
        Piece(name, start, min(start + group, size), 2 * start + group * which)
        for start in range(0, size, group)
        for which, name in enumerate((first, second))
    ]


def pack(
    checkpoint: Checkpoint, pieces: Sequence[Piece], num_inputs: int, quantization: str, arena: Arena
) -> kernels.Weights:
    """Pack pieces into one matrix; ``quantization`` is ``int8``, or ``q4``: 4 bits for tensors that come in them.

    Raises ``UnsupportedModel`` for a tensor that is missing or of another shape.
    """
    blocks = {piece.name: checkpoint.load_blocks(f"{piece.name}.weight") for piece in pieces}
    stays_4_bit = quantization == "q4" and None not in blocks.values()
    format = kernels.WeightFormat.Q4 if stays_4_bit else kernels.WeightFormat.INT8
    num_outputs = max(piece.at + piece.stop - piece.start for piece in pieces)
    num_outputs += -num_outputs % kernels.COLUMNS if len(pieces) > 1 else 0
    block_bytes = kernels.weight_bytes(format, kernels.COLUMNS, num_inputs)
    packed = arena.take(kernels.weight_bytes(format, num_outputs, num_inputs))
    for piece in pieces:
        first, num_rows = piece.at // kernels.COLUMNS, piece.stop - piece.start
        last = first + -(-num_rows // kernels.COLUMNS)
        out = packed[first * block_bytes : last * block_bytes]
        found = blocks[piece.name]
        if found is not None:
            kind, data = found
            try:
                kernels.pack_blocks(format, kernels.BlockFormat[kind], data[piece.start : piece.stop], num_inputs, out)
            except ValueError as error:
                raise UnsupportedModel(f"{piece.name}.weight is not of the configuration's shape: {error}") from None
            continue
        rows = checkpoint.load(f"{piece.name}.weight", torch.float32, slice(piece.start, piece.stop))
        if rows.shape != (num_rows, num_inputs):
            raise UnsupportedModel(f"{piece.name}.weight has rows of shape {list(rows.shape)}, expected {num_inputs}")
        kernels.pack_int8(rows.numpy(), out)
    return kernels.Weights(format, packed, num_outputs, num_inputs, _load_bias(checkpoint, pieces, num_outputs))


def _load_bias(checkpoint: Checkpoint, pieces: Sequence[Piece], num_outputs: int) -> NDArray[np.float32] | None:
    if f"{pieces[0].name}.bias" not in checkpoint:
        return None
    bias = np.zeros(num_outputs + -num_outputs % kernels.COLUMNS, dtype=np.float32)
    for piece in pieces:
        values = checkpoint.load(f"{piece.name}.bias", torch.float32, slice(piece.start, piece.stop))
        bias[piece.at : piece.at + len(values)] = values.numpy()
    return bias
