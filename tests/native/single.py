"""Programs of one operation, and what the kernels' memory holds, decoded with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.native import kernels

Floats = NDArray[np.float32]
ISAS = sorted({kernels.choose_isa(limit).name for limit in ("portable", "avx2", "avx512_vnni")}) if kernels else []
GROUP, HALF = 64, 32
ACTIVATIONS = np.dtype([("values", "i1", GROUP), ("scale", "f4"), ("corrections", "i4", 2), ("padding", "i4")])


def hadamard(size: int = HALF) -> NDArray[np.float64]:
    """The matrix of 1 and -1 that Sylvester's rule makes."""
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h


def by_halves(x: NDArray[Any]) -> NDArray[np.float64]:
    """``[..., n] -> [..., ceil(n / 64) * 2, 32]``, zeros after the end."""
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % GROUP)]
    padded = np.pad(x.astype(np.float64), padding)
    return padded.reshape(*x.shape[:-1], -1, HALF)


def run(isa: str, num_rows: int, build: Callable[[kernels.ForwardPass], None], num_threads: int = 1) -> None:
    """Run the operations that ``build`` appends once, over ``num_rows`` tokens that all want logits."""
    program = kernels.ForwardPass(num_threads, kernels.choose_isa(isa), 1 << 20, 16, 1 << 16)
    build(program)
    ints = [np.array([n], dtype=np.int32) for n in (0, num_rows, num_rows)]
    program.run(np.arange(num_rows, dtype=np.int32), *ints, np.zeros(-(-num_rows // 16), dtype=np.int32))


def floats(buffer: kernels.Buffer, num_rows: int) -> Floats:
    return buffer.rows(num_rows).view(np.float32)


def decode(buffer: kernels.Buffer, num_rows: int, rotated: bool) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Plain numbers ``[num_rows, groups * 64]`` that a quantised buffer stands for, and its records."""
    records = buffer.rows(num_rows).reshape(num_rows, -1, ACTIVATIONS.itemsize).view(ACTIVATIONS)[..., 0]
    values = records["values"].astype(np.float64) * records["scale"][..., None].astype(np.float64)
    halves = values.reshape(num_rows, -1, HALF)
    return (halves @ hadamard() if rotated else halves).reshape(num_rows, -1), records
