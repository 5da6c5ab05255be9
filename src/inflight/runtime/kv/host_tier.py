"""Blocks in the host's memory, or in a file, that take the KV of preempted sequences and give it back unchanged."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inflight.core.output import BlockCopy, BlockId
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.huge_pages import reserve
from inflight.runtime.kv.base import BlockStore

CPU = torch.device("cpu")


class HostBlocks:
    """``num_blocks`` blocks, uint8 ``[num_blocks, bytes_per_block]``, each for what one block of ``store`` holds.

    Memory is reserved, not touched; a ``file`` is allocated whole, and has no name any more once it is mapped: it ends
    with the process, however that ends, and nobody else can open it. Raises ``ValueError`` or ``InsufficientMemory``
    for a file that cannot be had, ``MemoryError`` for memory.
    """

    def __init__(self, store: BlockStore, num_blocks: int, device: torch.device, file: Path | None = None) -> None:
        self.num_blocks = num_blocks
        num_bytes = num_blocks * store.bytes_per_block
        memory = reserve(num_bytes) if file is None or not num_blocks else _map_new_file(file, num_bytes)
        self._blocks = torch.from_numpy(memory).view(num_blocks, store.bytes_per_block)
        self._store = store
        self._device = device
        self._is_far = device.type != "cpu"

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry copies out: those to the host first, then those from it; what goes to a device goes in one piece.

        Raises ``ValueError`` for a block that does not exist.
        """
        for copy in copies:
            if not (0 <= copy.block < self._store.num_blocks and 0 <= copy.host_block < self.num_blocks):
                raise ValueError(f"{copy}: there are {self._store.num_blocks} blocks and {self.num_blocks} host blocks")
        with torch.inference_mode():
            if to_host := [copy for copy in copies if copy.to_host]:
                self._copy_to_host(to_host)
            if from_host := [copy for copy in copies if not copy.to_host]:
                self._copy_from_host(from_host)

    def _copy_to_host(self, copies: Sequence[BlockCopy]) -> None:
        here = [self._blocks[copy.host_block] for copy in copies]
        there = self._one_piece(len(copies), self._device) if self._is_far else here
        for copy, data in zip(copies, there, strict=True):
            for part, view in self._parts(copy.block, data):
                _copy(part, view)
        if isinstance(there, Tensor):
            for row, data in zip(here, self._one_piece(len(copies), CPU).copy_(there), strict=True):
                _copy(row, data)

    def _copy_from_host(self, copies: Sequence[BlockCopy]) -> None:
        there = here = [self._blocks[copy.host_block] for copy in copies]
        if self._is_far:
            leaving = torch.stack(here, out=self._one_piece(len(copies), CPU))
            there = list(self._one_piece(len(copies), self._device).copy_(leaving))
        for copy, data in zip(copies, there, strict=True):
            for part, view in self._parts(copy.block, data):
                _copy(view, part)

    def _parts(self, block: BlockId, data: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The bytes of a block in ``data``, part by part, beside those in the store."""
        at = 0
        for part in self._store.block_parts(block):
            view = part.view(torch.uint8)
            yield data[at : at + view.numel()].view(view.shape), view
            at += view.numel()

    def _one_piece(self, num_blocks: int, device: torch.device) -> Tensor:
        """Memory for a transfer; torch keeps pinned memory for the next one."""
        pinned = device.type == "cpu" and self._device.type == "cuda"
        shape = (num_blocks, self._blocks.shape[1])
        return torch.empty(shape, dtype=torch.uint8, device=device, pin_memory=pinned)


def _copy(to: Tensor, of: Tensor) -> None:
    """Copy bytes. Between the tiers of a CPU one thread does: torch would wake and await all of them for each block."""
    if to.device == of.device == CPU:
        np.copyto(to.numpy(), of.numpy())
    else:
        to.copy_(of)


def _map_new_file(path: Path, num_bytes: int) -> NDArray[np.uint8]:
    """Zeros in a file of its own. All of it is allocated here: a disk that fills up later cannot end the process."""
    if not hasattr(os, "posix_fallocate"):
        raise ValueError("swap_file needs a system that can allocate a file (posix_fallocate), which this one cannot")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)  # before the slow part: who is killed in it leaves no name behind
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"swap_file {str(path)!r} cannot be created: {reason}") from error
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        return np.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=np.uint8)
    except OSError as error:
        raise InsufficientMemory(f"swap_file {path} cannot hold {num_bytes:,} bytes: {error.strerror}") from error
    finally:
        os.close(descriptor)
