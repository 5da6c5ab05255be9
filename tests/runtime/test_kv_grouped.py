"""KV in groups of small integers, on any device: what a store keeps, and how much memory that takes."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import naive
from torch_worlds import Driver, greedy, load, make_llama, seq

from inflight.runtime.attention.reference import ReferencePlan
from inflight.runtime.batch import BatchRow
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.kv.formats import GROUP_FORMATS
from inflight.runtime.kv.grouped import GROUP, SMALLEST, GroupedKV, hadamard

CPU = torch.device("cpu")
NUM_BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM = 4, 5, 2, 96
LEAST_SAVED = {"int8": 0.45, "int4": 0.70}  # of what bfloat16 takes


def empty(name: str) -> GroupedKV:
    """A store that holds what the memory held before: the worst there is."""
    kv = GroupedKV(NUM_BLOCKS, BLOCK_SIZE, 2, HEADS, HEAD_DIM, GROUP_FORMATS[name], CPU)
    for numbers, scales in kv._sides:
        numbers[:, :, : kv.null_slot] = -1
        scales[:, :, : kv.null_slot] = math.nan
    return kv


def rows(seed: int, num_tokens: int, magnitude: float = 1.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HEADS, HEAD_DIM, generator=random) * magnitude
    return torch.where(torch.rand(x.shape, generator=random) < 0.03, 100 * x, x)


@pytest.mark.parametrize("name", GROUP_FORMATS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), exponent=st.integers(-140, 110))
def test_numbers_come_back_within_half_a_step(name: str, seed: int, exponent: int) -> None:
    """A step is 1 / largest of a group's range in its own basis, and up to 2**-7 more by the rounding of its scale."""
    kv, x = empty(name), rows(seed, 20, 2.0**exponent)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)
    kv.write(1, slots, x, -x)
    k, v = kv.gather(1, slots)
    assert torch.equal(v, -k) or name == "int4"  # whose halves of a step go to the even neighbour
    exact, found = (hadamard(side.double().unflatten(-1, (-1, GROUP))) / GROUP for side in (x.transpose(0, 1), k))
    top = exact.abs().amax(-1, keepdim=True)
    bound = top / kv._format.largest * (0.5 + 2**-8 + 2**-18) + torch.where(top < 2 * SMALLEST, 2 * SMALLEST, 0.0)
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_company_changes_no_bit_and_what_is_not_finite_stays_in_its_group(name: str) -> None:
    together, alone, x = empty(name), empty(name), rows(0, 20)
    for bad, at in ((math.nan, (0, 0, 0)), (math.inf, (7, 1, 40)), (-math.inf, (19, 0, 95))):
        x[at] = bad
    slots = torch.arange(20)
    together.write(0, slots, x, x)
    for token in range(20):
        alone.write(0, slots[token : token + 1], x[token : token + 1], x[token : token + 1])
    for side, other in zip(together._sides, alone._sides, strict=True):
        assert torch.equal(side[0][0], other[0][0])
        assert torch.equal(side[1][0].view(torch.int16), other[1][0].view(torch.int16))
    spoilt = ~x.transpose(0, 1).unflatten(-1, (-1, GROUP)).isfinite().all(-1, keepdim=True)
    for side in together.gather(0, slots):
        groups = side.unflatten(-1, (-1, GROUP))
        assert torch.equal(groups.isnan(), spoilt.expand(groups.shape))
    zeros = torch.zeros(HEADS, 1, HEAD_DIM)
    assert all(torch.equal(side, zeros) for side in together.gather(0, torch.tensor([together.null_slot])))


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_attention_over_it_equals_the_formula(name: str) -> None:
    kv, k, v = empty(name), rows(0, 17), rows(1, 17)
    q = torch.randn(9, 2 * HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:17]
    kv.write(1, slots, k, v)
    out = ReferencePlan([BatchRow(8, 9, slots.numpy())], 2 * HEADS, kv, CPU).run(1, q, kv)
    stored = (side.transpose(0, 1) for side in kv.gather(1, slots))
    torch.testing.assert_close(out.double(), naive(q, *stored, 8), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_bytes_are_counted_with_the_scales(name: str) -> None:
    kv = empty(name)
    plain = DenseKV(NUM_BLOCKS, BLOCK_SIZE, 2, HEADS, HEAD_DIM, torch.bfloat16, CPU)
    assert sum(part.numel() * part.itemsize for part in kv.block_parts(1)) == kv.bytes_per_block
    group_bytes = GROUP * kv._format.bits // 8 + 2
    assert kv.bytes_per_block == BLOCK_SIZE * 2 * 2 * HEADS * HEAD_DIM // GROUP * group_bytes
    assert kv.bytes_per_block <= (1 - LEAST_SAVED[name]) * plain.bytes_per_block


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_a_model_runs_on_it_or_is_refused_with_the_numbers(tmp_path: Path, name: str) -> None:
    make_llama(tmp_path, head_dim=32)
    driver = Driver(load(tmp_path, quantization="none", kv_cache_dtype=name))
    driver.add(seq(), range(2, 40), greedy())
    driver.finish(4)
    assert len(driver.sampled[seq()]) >= 4
    driver.end()
    with pytest.raises(ValueError, match=f"{name} stores groups of 32 numbers: head_dim must be .* 32, not 8"):
        load(make_narrow(tmp_path), quantization="none", kv_cache_dtype=name)


def make_narrow(folder: Path) -> Path:
    narrow = folder / "narrow"
    narrow.mkdir()
    make_llama(narrow)  # heads of 8
    return narrow
