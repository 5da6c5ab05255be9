"""The published traces themselves, where ``INFLIGHT_DATA_DIR`` has them: their known figures come out."""

import os
from pathlib import Path

import pytest

from inflight.workload.arrivals import mean_rate_per_s
from inflight.workload.prompts import make_prompts, random_pool, text_prompts
from inflight.workload.shape import clip, scale_lengths
from inflight.workload.trace import describe, read_trace

DATA = os.environ.get("INFLIGHT_DATA_DIR")
pytestmark = pytest.mark.skipif(DATA is None, reason="INFLIGHT_DATA_DIR is not set")


def hit_share(blocks: list[list[object]]) -> float:
    """The share of blocks that were there before, in a cache that keeps them all."""
    flat = [block for request in blocks for block in request]
    return 1 - len(set(flat)) / len(flat)


def test_azure_2023() -> None:
    trace = read_trace(Path(DATA or "") / "azure_llm_2023_conv.csv", "azure")
    assert len(trace) == 19_366
    assert "prompt tokens p50 1,020 p99 4,142; output tokens p50 129 p99 601" in describe(trace)
    assert mean_rate_per_s([request.arrival_s for request in trace]) == pytest.approx(19_365 / 3501.721937)


def test_mooncake_and_its_sharing_survives_being_scaled_into_prompts() -> None:
    trace = read_trace(Path(DATA or "") / "mooncake_conversation_trace.jsonl", "mooncake")
    assert len(trace) == 12_031
    expected = hit_share([list(request.prefix_ids) for request in trace])
    assert expected == pytest.approx(0.366, abs=0.0005)
    scaled = scale_lengths(trace, 1 / 64)
    assert clip(scaled, 8192).requests == scaled.requests
    items = make_prompts(scaled, random_pool(49_152))
    chains = []
    for item in items:
        prompt = item.prompt_token_ids
        chain, seen = [], 0
        for start in range(0, len(prompt), 8):  # a block of 512 tokens is 8 now; its key is all up to its end
            seen = hash((seen, prompt[start : start + 8]))
            chain.append(seen)
        chains.append(chain)
    assert hit_share(chains) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "num_prompts"),
    [
        ("spec_bench_question.jsonl", 480),
        ("mt_bench_question.jsonl", 80),
        ("vicuna_bench_question.jsonl", 80),
        ("HumanEval.jsonl.gz", 164),
    ],
)
def test_real_prompts(name: str, num_prompts: int) -> None:
    assert len(text_prompts(Path(DATA or "") / name)) == num_prompts
