"""Blocks in the second tier: every byte comes back, in the right order, and what cannot be had is refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_worlds import greedy, load, make_llama, seq

from fakes import PaperExecutor
from inflight.core.errors import StepFailed
from inflight.core.output import BlockCopy, NewSequence, ScheduledSequence, SchedulerOutput
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.kv.base import BlockStore
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.kv.host_tier import HostBlocks
from inflight.runtime.runner import ModelExecutor

CPU = torch.device("cpu")
NUM_BLOCKS, NUM_HOST_BLOCKS = 5, 4


class OddStore:
    """Blocks of 3 * 7 bytes and 3 * 2 halves, so that nothing is aligned."""

    num_blocks = NUM_BLOCKS
    bytes_per_block = 3 * 7 + 3 * 2 * 2

    def __init__(self) -> None:
        self.numbers = torch.randint(256, (3, NUM_BLOCKS, 7), dtype=torch.uint8)
        self.scales = torch.randn(3, NUM_BLOCKS * 2).bfloat16()

    def block_parts(self, block: int) -> tuple[Tensor, ...]:
        return self.numbers[:, block], self.scales[:, 2 * block : 2 * block + 2]


def dense(dtype: torch.dtype) -> DenseKV:
    kv = DenseKV(NUM_BLOCKS, 3, num_layers=2, num_kv_heads=2, head_dim=5, dtype=dtype, device=CPU)
    kv._k.copy_(torch.randn(kv._k.shape))
    kv._v.copy_(torch.randn(kv._v.shape))
    return kv


def contents(store: BlockStore) -> list[bytes]:
    return [
        b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in store.block_parts(block))
        for block in range(store.num_blocks)
    ]


STORES = {"odd": OddStore, "float32": lambda: dense(torch.float32), "bfloat16": lambda: dense(torch.bfloat16)}
COPIES = st.lists(
    st.builds(
        BlockCopy,
        st.booleans(),
        st.integers(0, NUM_BLOCKS - 1),
        st.integers(0, NUM_HOST_BLOCKS - 1),
    ),
    max_size=6,
    unique_by=(lambda copy: (copy.to_host, copy.block), lambda copy: (copy.to_host, copy.host_block)),
)


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("store", STORES)
@settings(max_examples=15, deadline=None)
@given(steps=st.lists(COPIES, max_size=5))
def test_copies_are_those_of_lists(store: str, is_far: bool, steps: list[list[BlockCopy]]) -> None:
    """Whole blocks, byte by byte, to the host before from it, and all others stay as they are."""
    kv = STORES[store]()
    host = HostBlocks(kv, NUM_HOST_BLOCKS, CPU)
    host._is_far = is_far
    here, there = contents(kv), [bytes(kv.bytes_per_block)] * NUM_HOST_BLOCKS
    assert {len(block) for block in here} == {kv.bytes_per_block}
    for copies in steps:
        host.copy(copies)
        for copy in copies:
            if copy.to_host:
                there[copy.host_block] = here[copy.block]
        for copy in copies:
            if not copy.to_host:
                here[copy.block] = there[copy.host_block]
        assert contents(kv) == here
        assert [block.numpy().tobytes() for block in host._blocks] == there


def in_memory(blocks: list[int], copies: tuple[BlockCopy, ...]) -> list[int]:
    store = OddStore()
    store.numbers[:, : len(blocks)] = torch.tensor(blocks, dtype=torch.uint8)[:, None]
    HostBlocks(store, NUM_HOST_BLOCKS, CPU).copy(copies)
    return store.numbers[0, : len(blocks), 0].tolist()


def on_paper(blocks: list[int], copies: tuple[BlockCopy, ...]) -> list[int]:
    executor = PaperExecutor(len(blocks), block_size=1, num_host_blocks=NUM_HOST_BLOCKS)
    executor._memory = [[block] for block in blocks]
    executor.execute(SchedulerOutput("main", 0, (), copies=copies))
    return [block for (block,) in executor._memory]


@pytest.mark.parametrize("tier", [in_memory, on_paper])
def test_what_goes_out_has_gone_before_anything_comes_in(
    tier: Callable[[list[int], tuple[BlockCopy, ...]], list[int]],
) -> None:
    """A step may give a block to somebody whose KV comes in while what it held goes out, or bring that back at once."""
    for copies in permutations((BlockCopy(True, 0, 0), BlockCopy(True, 1, 1), BlockCopy(False, 1, 0))):
        assert tier([10, 11, 12], copies) == [10, 10, 12]
        assert tier([10, 11, 12], (*copies, BlockCopy(False, 2, 1))) == [10, 10, 11]


def test_a_file_holds_blocks_and_has_no_name(tmp_path: Path) -> None:
    kv = OddStore()
    before = contents(kv)
    host = HostBlocks(kv, NUM_HOST_BLOCKS, CPU, tmp_path / "swap")
    assert list(tmp_path.iterdir()) == []
    host.copy([BlockCopy(True, block, block) for block in range(4)])
    kv.numbers.zero_()
    host.copy([BlockCopy(False, block, block) for block in range(4)])
    assert contents(kv)[:4] == before[:4]
    assert HostBlocks(kv, 0, CPU, tmp_path / "swap").num_blocks == 0


def test_a_file_has_no_name_while_it_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed in that time, which is long where a disk is slow, leaves no file that bars the next start."""
    file = tmp_path / "swap"
    seen: list[bool] = []
    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *args: (seen.append(file.exists()), allocate(*args)))
    HostBlocks(OddStore(), 2, CPU, file)
    assert seen == [False]


def test_a_file_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("not yours")
    with pytest.raises(ValueError, match=r"kept' cannot be created: File exists"):
        HostBlocks(OddStore(), 1, CPU, kept)
    assert kept.read_text() == "not yours"
    with pytest.raises(ValueError, match=r"swap_file 'a.x00b' cannot be created"):
        HostBlocks(OddStore(), 1, CPU, Path("a\0b"))
    with pytest.raises(ValueError, match="No such file or directory"):
        HostBlocks(OddStore(), 1, CPU, tmp_path / "nowhere" / "swap")


def test_a_file_larger_than_there_is_room_for_is_refused_at_once(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InsufficientMemory, match=r"swap_file .*swap cannot hold 3,300 bytes: File too large"):
            HostBlocks(OddStore(), 100, CPU, tmp_path / "swap")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("copy", [BlockCopy(True, NUM_BLOCKS, 0), BlockCopy(False, 0, 4), BlockCopy(True, -1, 0)])
def test_a_block_that_does_not_exist_is_refused_before_anything_is_copied(copy: BlockCopy) -> None:
    kv = OddStore()
    host = HostBlocks(kv, NUM_HOST_BLOCKS, CPU)
    with pytest.raises(ValueError, match="there are 5 blocks and 4 host blocks"):
        host.copy([BlockCopy(True, 1, 1), copy])
    assert not host._blocks.any()


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> ModelExecutor:
    folder = tmp_path_factory.mktemp("tiny")
    make_llama(folder)
    return load(folder)


def test_a_step_whose_copies_fail_leaves_the_executor_usable(executor: ModelExecutor) -> None:
    new = NewSequence(seq(), (5, 6, 7), greedy(), ())
    row = ScheduledSequence(seq(), (5, 6, 7), 0, (0,), 1)
    good = executor.execute(SchedulerOutput("main", 0, (row,), new=(new,)))
    with pytest.raises(StepFailed, match="host blocks"):
        executor.execute(SchedulerOutput("main", 1, (row,), copies=(BlockCopy(True, 0, 10**9),)))
    again = executor.execute(SchedulerOutput("main", 2, (row,), copies=(BlockCopy(True, 0, 3), BlockCopy(False, 7, 3))))
    assert again.sampled == good.sampled
    assert 0 < again.copies_s < again.duration_s
    next_row = ScheduledSequence(seq(), (again.sampled[0].tokens[0].token_id,), 3, (0,), 1)
    from_copy = next_row._replace(block_table=(7,))
    results = [executor.execute(SchedulerOutput("main", 3, (one,))) for one in (next_row, from_copy)]
    assert results[0].sampled == results[1].sampled
    assert len(results[0].sampled) == 1
    executor.execute(SchedulerOutput("main", 4, (), finished=(seq(),)))
    executor.execute(SchedulerOutput("main", 5, (), copies=(BlockCopy(False, 1, 0),)))  # copies need no rows


def test_copies_of_a_closed_executor_fail(tmp_path: Path) -> None:
    make_llama(tmp_path)
    executor = load(tmp_path)
    executor.close()
    with pytest.raises(StepFailed, match="closed"):
        executor.execute(SchedulerOutput("main", 0, (), copies=(BlockCopy(True, 0, 0),)))
