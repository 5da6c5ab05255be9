"""Paged attention over random ragged batches against the formula, written out."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.runtime.attention.reference import ReferencePlan
from inflight.runtime.batch import BatchRow
from inflight.runtime.kv.dense import DenseKV

CPU = torch.device("cpu")


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    """One sequence, one head at a time, in float64."""
    positions = start + torch.arange(q.shape[0])
    hidden = torch.arange(k.shape[0]) > positions[:, None]
    group = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        keys, values = (side[:, head // group].double() for side in (k, v))
        scores = q[:, head].double() @ keys.T / math.sqrt(q.shape[2])
        heads.append(torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ values)
    return torch.stack(heads, 1)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.sampled_from([0, 1, 15, 126, 127, 128, 300]), st.sampled_from([1, 2, 7, 17, 60, 130])),
        min_size=1,
        max_size=5,
    ),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1), (20, 1)]),
    head_dim=st.sampled_from([4, 16]),
    block_size=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_formula_over_random_ragged_batches(
    lengths: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, block_size: int, seed: int
) -> None:
    num_heads, num_kv_heads = heads
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    num_blocks = sum(-(-(start + q_len) // block_size) for start, q_len in lengths)
    kv = DenseKV(num_blocks, block_size, 1, num_kv_heads, head_dim, torch.float32, CPU)
    kv._k.fill_(math.nan)  # what was never written must never be read
    kv._v.fill_(math.nan)
    kv._k[:, :, kv.null_slot] = kv._v[:, :, kv.null_slot] = 0
    free = torch.randperm(num_blocks, generator=random).tolist()
    rows, queries, expected = [], [], []
    for start, q_len in lengths:
        end = start + q_len
        blocks = np.array([free.pop() for _ in range(-(-end // block_size))])
        slots = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[:end]
        k, v, q = (normal(n, h, head_dim) for n, h in ((end, num_kv_heads), (end, num_kv_heads), (q_len, num_heads)))
        kv.write(0, torch.from_numpy(slots), k, v)
        rows.append(BatchRow(start, q_len, slots))
        queries.append(q)
        expected.append(naive(q, k, v, start))
    plan = ReferencePlan(rows, num_heads, kv, CPU)
    out = plan.run(0, torch.cat(queries), kv)
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=2e-5, rtol=2e-5)
