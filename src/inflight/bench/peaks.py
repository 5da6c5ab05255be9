"""The machine's ceilings, measured in the kernels' own instructions with all threads at once: a roofline's roof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight.native import kernels

NUM_ROUNDS = 20_000_000  # of a loop over registers: some 50 ms, longer than the bursts of a higher clock
NUM_TRIES = 15
MIN_READ_BYTES = 2**28  # of one try and thread, for the same reason
READ_SIZES = tuple(2**exponent for exponent in range(15, 30))  # bytes that all threads together read again and again


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that some work takes, and what holds it up: a name of ``Peaks``' ceilings."""

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Operations and bytes per second. A multiplication and an addition are two operations."""

    int8_operations_per_s: float
    fp32_operations_per_s: float
    read_bytes_per_s: tuple[tuple[int, float], ...]  # (bytes that are read again and again, rate), by size

    def read_rate(self, num_bytes: int) -> float:
        """Bytes per second at which so many bytes can be read again and again: of the cache that holds them.

        Read off between the two measured sizes beside it, on a logarithmic scale.
        """
        sizes, rates = zip(*self.read_bytes_per_s, strict=True)
        return float(np.interp(math.log2(num_bytes), [math.log2(size) for size in sizes], rates))

    def bound(self, int8_operations: float, fp32_operations: float, num_bytes: float, working_set_bytes: int) -> Bound:
        """The roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): arithmetic and reading overlap perfectly."""
        compute_s = int8_operations / self.int8_operations_per_s + fp32_operations / self.fp32_operations_per_s
        read_s = num_bytes / self.read_rate(working_set_bytes)
        if read_s >= compute_s:
            return Bound(read_s, "read")
        return Bound(compute_s, "int8" if int8_operations else "fp32")


def measure_peaks(
    isa: kernels.Isa, num_threads: int, num_tries: int = NUM_TRIES, read_sizes: Sequence[int] = READ_SIZES
) -> Peaks:
    """Measure; each figure is the best of ``num_tries``: a neighbour slows a loop down, nothing speeds it up."""
    rates = []
    for size in read_sizes:
        each = size // num_threads
        num_rounds = max(1, MIN_READ_BYTES // each)
        rates.append((size, kernels.read_bytes_per_s(isa, num_threads, each, num_rounds, num_tries)))
    return Peaks(
        kernels.dot_operations_per_s(isa, num_threads, NUM_ROUNDS, num_tries),
        kernels.fma_operations_per_s(isa, num_threads, NUM_ROUNDS, num_tries),
        tuple(rates),
    )
