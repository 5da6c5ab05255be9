"""Large memory in huge pages where the system has them: fewer translations to look up while weights stream by."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 * 2**20
CHUNK_BYTES = 32 * 2**20
ALIGNMENT_BYTES = 64  # a cache line, and the longest vector


def reserve(num_bytes: int) -> NDArray[np.uint8]:
    """Zeros, aligned to huge pages; the system hands out pages when they are first touched.

    Raises ``MemoryError``.
    """
    try:
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES)
    except OSError as error:
        raise MemoryError(f"{num_bytes:,} bytes cannot be reserved: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages: they are only asked for
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes]


class Arena:
    """Hands out pieces of such memory, chunk by chunk; they live as long as anyone holds one."""

    def __init__(self) -> None:
        self._rest = reserve(0)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Zeros, aligned to ``ALIGNMENT_BYTES``."""
        if num_bytes > CHUNK_BYTES:
            return reserve(num_bytes)
        if num_bytes > len(self._rest):
            self._rest = reserve(CHUNK_BYTES)
        piece, self._rest = self._rest[:num_bytes], self._rest[num_bytes + -num_bytes % ALIGNMENT_BYTES :]
        return piece
