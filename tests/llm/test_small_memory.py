"""Whatever becomes of sequences that must give their memory up, their tokens stay those of ample memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight import LLM, SamplingParams
from inflight.core.output import SchedulerStats
from inflight.engine.recorder import Started, read_step_log

BLOCK_BYTES = 4 * 2 * 2 * 2 * 8 * 4  # tokens x layers x sides x heads x dims x float32
PROMPTS = [f"{'shared by some ' * (i % 2)}number {i}" for i in range(8)]
SAMPLING = [SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True, n=1 + (i == 3)) for i in range(8)]


def generate(model: str, **settings: Any) -> tuple[list[list[int]], SchedulerStats]:
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 64, "admission": "none"}
    with LLM(model, dtype="float32", num_threads=1, block_size=4, **limits, **settings) as llm:
        outputs = llm.generate(PROMPTS, SAMPLING, use_tqdm=False)
        assert llm._engine is not None
        stats = llm._engine.core.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_free_host_blocks == stats.num_host_blocks
    return [choice.token_ids for output in outputs for choice in output.outputs], stats


@pytest.fixture(scope="module")
def expected(tiny_model: str) -> list[list[int]]:
    tokens, stats = generate(tiny_model, num_gpu_blocks_override=256, enable_prefix_caching=False)
    assert stats.num_preemptions == 0
    return tokens


@pytest.mark.parametrize(
    ("preemption_mode", "prefix_cache"),
    [("recompute", "none"), ("swap", "none"), ("swap", "hash"), ("auto", "radix")],
)
def test_tokens_are_those_of_ample_memory(
    tiny_model: str, expected: list[list[int]], preemption_mode: str, prefix_cache: str, tmp_path: Path
) -> None:
    log, swap_file = tmp_path / "steps.jsonl", tmp_path / "swap"
    tokens, stats = generate(
        tiny_model,
        num_gpu_blocks_override=18,
        preemption_mode=preemption_mode,
        prefix_cache=prefix_cache,
        swap_space_bytes=20 * BLOCK_BYTES,
        swap_file=swap_file if prefix_cache == "radix" else None,
        step_log=log,
    )
    assert tokens == expected
    assert stats.num_preemptions > 0
    assert (stats.num_prefix_hit_tokens > 0) == (prefix_cache != "none")
    num_host_blocks = 0 if preemption_mode == "recompute" else 20
    assert stats.num_host_blocks == num_host_blocks
    assert (stats.num_swapped_out_blocks > 0) == (num_host_blocks > 0)
    started = next(read_step_log(log))
    assert isinstance(started, Started)
    assert started.num_host_blocks == num_host_blocks


def test_only_who_may_swap_asks_for_a_file(tiny_model: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(ValueError, match="File exists"):
        LLM(tiny_model, dtype="float32", num_threads=1, num_gpu_blocks_override=64, swap_file=taken)
    for settings in (
        {"preemption_mode": "recompute"},
        {"kv_allocator": "contiguous", "max_model_len": 64},
        {"swap_space_bytes": 0},
        {"scheduler": "static"},
    ):
        LLM(tiny_model, dtype="float32", num_threads=1, num_gpu_blocks_override=64, swap_file=taken, **settings).close()
