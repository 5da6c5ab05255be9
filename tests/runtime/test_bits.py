"""A row's bits do not depend on who shares its batch, on chunking, or on a preemption. Exact, not approximate."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_worlds import VOCAB_SIZE, Driver, load, make_llama, seq

from inflight.core.request import SamplingParams
from inflight.runtime.linear import dense
from inflight.runtime.runner import ModelExecutor

NUM_SEQUENCES, NUM_NEW = 6, 6
PROMPTS = [
    np.random.default_rng(i).integers(2, VOCAB_SIZE, size=n).tolist() for i, n in enumerate((1, 7, 20, 61, 140, 270))
]
SAMPLING = [
    SamplingParams(temperature=0.0, max_tokens=None, logprobs=20),
    SamplingParams(temperature=0.8, seed=11, max_tokens=None, logprobs=20, top_p=0.9),
]


def run_alone(executor: ModelExecutor, index: int) -> list[object]:
    driver = Driver(executor)
    driver.add(seq(str(index)), PROMPTS[index], SAMPLING[index % 2])
    driver.finish(NUM_NEW)
    driver.end()
    return list(driver.sampled[seq(str(index))])


@pytest.fixture(
    scope="module", params=["grouped float32", "multi_query float32", "grouped bfloat16", "grouped float16"]
)
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelExecutor:
    kind, dtype = request.param.split()
    folder = tmp_path_factory.mktemp("bits")
    make_llama(folder, intermediate_size=1600, num_key_value_heads=2 if kind == "grouped" else 1)
    return load(folder, dtype=dtype, num_gpu_blocks_override=512)


@pytest.fixture(scope="module")
def alone(executor: ModelExecutor) -> list[list[object]]:
    return [run_alone(executor, index) for index in range(NUM_SEQUENCES)]


@settings(max_examples=6, deadline=None)
@given(world=st.integers(0, 2**32 - 1), most=st.sampled_from([7, 40, 400]))
def test_tokens_and_logprobs_are_those_of_the_sequence_alone(
    executor: ModelExecutor, alone: list[list[object]], world: int, most: int
) -> None:
    """Sequences arrive at random steps, run in random chunks, and some lose their KV."""
    random = np.random.default_rng(world)
    driver = Driver(executor)
    waiting = random.permutation(NUM_SEQUENCES).tolist()
    preemptions = 4
    while waiting or any(len(tokens) < NUM_NEW for tokens in driver.sampled.values()):
        for index in [waiting.pop() for _ in range(min(len(waiting), random.integers(0, 4)))]:
            driver.add(seq(str(index)), PROMPTS[index], SAMPLING[index % 2])
        live = [s for s, tokens in driver.sampled.items() if len(tokens) < NUM_NEW]
        if live and preemptions and random.random() < 0.15:
            driver.preempt(live[random.integers(len(live))])
            preemptions -= 1
        if live:
            driver.run({s: int(random.integers(most // 2, most)) + 1 for s in live})
    driver.end()
    for index in range(NUM_SEQUENCES):
        assert driver.sampled[seq(str(index))] == alone[index]


def test_block_size_changes_no_bit(tmp_path: Path) -> None:
    make_llama(tmp_path)
    outcomes = []
    for block_size in (1, 3, 16, 100):
        executor = load(tmp_path, block_size=block_size, num_gpu_blocks_override=-(-1024 // block_size))
        outcomes.append([run_alone(executor, index) for index in (1, 4)])
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize("shape", [(576, 960), (1536, 576), (48, 40), (33, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["packed", "unpacked", "emulated"])
def test_a_linear_row_keeps_its_bits_at_any_row_count_and_place(
    shape: tuple[int, int], dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "emulated":
        monkeypatch.setattr(dense, "is_emulated", lambda dtype, device: True)
    random = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(size, generator=random).to(dtype) for size in (shape[::-1], shape[1:]))
    linear = dense.DenseLinear(weight, bias, pack=way == "packed")
    x = torch.randn(160, shape[0], generator=random).to(dtype)
    full = linear(x)
    for num_rows in (*range(1, 40), 63, 64, 65, 128, 129, 160):
        assert torch.equal(linear(x[:num_rows]), full[:num_rows]), num_rows
    order = torch.randperm(160, generator=random)
    assert torch.equal(linear(x[order]), full[order])
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert (full.double() - exact).abs().max() <= tolerance * exact.abs().max()
