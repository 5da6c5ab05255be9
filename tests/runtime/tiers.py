"""A scheduler that shares prefixes and swaps, on a real model: the bits of every row of logits, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch_worlds import VOCAB_SIZE, load

from inflight.core.output import Idle, ScheduledSequence, SchedulerStats, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.runtime.forward import ForwardPass, StepLogits
from inflight.runtime.runner import ModelExecutor
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.registry import make_scheduler

SHAPE = {"hidden_size": 96, "intermediate_size": 100, "head_dim": 64, "initializer_range": 0.1}  # for every format
BLOCK_SIZE = 16
MAX_LEN = 96
SMALL, PLENTY = 9, 64  # blocks
SWAP_SPACE_BYTES = 1_000_000


class Run(NamedTuple):
    logits: dict[tuple[SeqId, int], bytes]  # after so many tokens
    stats: SchedulerStats


class Spy:
    """A forward pass that keeps the logits of every row; what is computed twice must come out the same."""

    def __init__(self, forward: ForwardPass) -> None:
        self.forward = forward
        self.logits: dict[tuple[SeqId, int], bytes] = {}
        self.capacity, self.num_threads = forward.capacity, forward.num_threads
        self.copy_blocks = forward.copy_blocks

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        logits = self.forward.run(scheduled)
        rows = [row for row in scheduled if row.num_logits]
        for row, values in zip(rows, logits.values, strict=True):
            found = values.numpy().tobytes()
            assert self.logits.setdefault((row.seq_id, row.start + len(row.token_ids)), found) == found
        return logits

    def operations_s(self) -> dict[str, float]:
        return self.forward.operations_s()


def requests() -> list[Request]:
    """Pairs of prompts that begin with the same two blocks, one of them for two choices."""
    rng = np.random.default_rng(0)
    beginnings = [tuple(rng.integers(2, VOCAB_SIZE, size=2 * BLOCK_SIZE).tolist()) for _ in range(3)]
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=(*beginnings[number % 3], *rng.integers(2, VOCAB_SIZE, size=3 + number).tolist()),
            sampling=SamplingParams(temperature=0.0, max_tokens=24 + number, ignore_eos=True, n=1 + (number == 4)),
            eos_token_ids=(1,),
        )
        for number in range(6)
    ]


def config(**settings: Any) -> ContinuousConfig:
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 40, "max_model_len": MAX_LEN, "admission": "none"}
    return ContinuousConfig(**(limits | settings))


def load_with_swap_space(folder: Path, **settings: Any) -> ModelExecutor:
    settings |= {"block_size": BLOCK_SIZE, "num_gpu_blocks_override": PLENTY, "swap_space_bytes": SWAP_SPACE_BYTES}
    executor = load(folder, **settings)
    assert executor.capacity.num_host_blocks == SWAP_SPACE_BYTES // executor.capacity.bytes_per_block
    return executor


def run(executor: ModelExecutor, settings: ContinuousConfig, num_blocks: int) -> Run:
    """Serve the requests to their ends over the first blocks of the executor's memory."""
    forward = executor._forward
    assert forward is not None
    executor._forward = spy = Spy(forward)
    num_host_blocks = executor.capacity.num_host_blocks
    scheduler = make_scheduler(settings, num_blocks, executor.capacity.block_size, num_host_blocks)
    try:
        for request in requests():
            scheduler.add(request, 0.0)
        while not isinstance(output := scheduler.schedule("main", 0.0), Idle):
            result = executor.execute(output)
            assert isinstance(result, StepResult)
            assert not result.failed
            assert (result.copies_s > 0) == bool(output.copies)
            assert result.copies_s < result.duration_s
            scheduler.update(output, result, {}, 0.0)
            scheduler.check()
    finally:
        executor._forward = forward
    return Run(spy.logits, scheduler.stats())


def never_shared_nor_swapped(executor: ModelExecutor) -> Run:
    settings = config(enable_prefix_caching=False, preemption_mode="recompute")
    found = run(executor, settings, PLENTY)
    assert found.stats.num_preemptions == found.stats.num_prefix_hit_tokens == 0
    return found


def swap_to_and_fro(executor: ModelExecutor) -> Run:
    found = run(executor, config(enable_prefix_caching=False, preemption_mode="swap"), SMALL)
    assert found.stats.num_preemptions > 0
    assert found.stats.num_swapped_in_blocks == found.stats.num_swapped_out_blocks > 0
    return found


def hit_and_swap(executor: ModelExecutor) -> Run:
    found = run(executor, config(preemption_mode="swap"), SMALL)
    stats = found.stats
    assert min(stats.num_prefix_hit_tokens, stats.num_evicted_blocks, stats.num_swapped_in_blocks) > 0
    return found


WAYS = {"swapped": swap_to_and_fro, "found and swapped": hit_and_swap}
