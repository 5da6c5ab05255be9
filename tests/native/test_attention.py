"""Paged attention of the native kernels: against float64 on what the cache stores, and the law of bits.

The law: a token's output depends on its own sequence's keys, values and queries, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inflight.native import kernels
from inflight.runtime.models.rope import rotate
from native.pages import KV_GROUP, LARGEST, PAGE, Side, decode
from native.single import ISAS

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

KVFormat, Basis = kernels.KVFormat, kernels.Basis
FORMATS = list(KVFormat)
LAYERS, LAYER = 2, 1
GARBAGE = (0xFF, 0x00, 0x7F)  # of unwritten slots: NaN in every format, zeros, huge numbers
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    num_kv_heads: int
    num_heads: int
    head_dim: int

    def draw(self, seed: int, num_tokens: int) -> Array:
        """Queries, keys and values ``[num_tokens, num_heads + 2 * num_kv_heads, head_dim]`` of one sequence."""
        size = (num_tokens, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        return (2 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)

    @property
    def inverse_frequencies(self) -> Array:
        return (1e4 ** -(np.arange(0, self.head_dim, 2) / self.head_dim)).astype(np.float32)


SHAPES = [Shape(3, 9, 64), Shape(1, 1, 32), Shape(2, 2, 96), Shape(1, 13, 64), Shape(2, 10, 128), Shape(1, 30, 256)]


class World:
    """One layer's rotary and attention over a cache; sequences lie in blocks that are scattered over it."""

    def __init__(
        self,
        kv_format: Any,
        shape: Shape,
        lengths: Sequence[int],
        block_size: int = 16,
        num_threads: int = 1,
        seed: int = 0,
        garbage: int = GARBAGE[0],
        isa: str | None = None,
        turned: bool = True,
    ) -> None:
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = sum(counts) + 3
        blocks = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
        self.tables = np.split(blocks, np.cumsum(counts))[:-1]
        self.kv_format, self.shape, self.block_size = kv_format, shape, block_size
        size = (shape.num_kv_heads, shape.head_dim)
        block_bytes = kernels.kv_block_bytes(kv_format, LAYERS, block_size, *size)
        self.data = np.full(num_blocks * block_bytes, garbage, np.uint8)
        self._side_bytes = block_bytes // (LAYERS * shape.num_kv_heads * block_size // PAGE * 2)
        cache = kernels.KVCache(kv_format, self.data, LAYERS, num_blocks, block_size, *size)
        self.forward = kernels.ForwardPass(num_threads, kernels.choose_isa(isa), 1, block_size, num_blocks)
        heads = shape.num_heads + 2 * shape.num_kv_heads
        self.qkv = self.forward.buffer(4 * heads * shape.head_dim)
        angles = self.forward.buffer(4 * shape.head_dim)
        self.attended = self.forward.buffer(4 * shape.num_heads * shape.head_dim)
        self.out = self.forward.buffer(kernels.quantized_bytes(shape.num_heads * shape.head_dim))
        self.forward.angles(shape.inverse_frequencies * (1 if turned else 0), angles)
        self.forward.rotary(self.qkv, angles, cache, LAYER, shape.num_heads)
        plan = self.forward.attention_plan(cache, shape.num_heads)
        self.forward.attention(plan, self.qkv, cache, LAYER, self.attended)
        self.forward.attention_output(plan, self.attended, self.out, Basis.PLAIN)

    def step(self, chunks: Sequence[tuple[int, int, Array]]) -> list[bytes]:
        """Run chunks (sequence, start, rows); return each one's output rows, ``attended`` and quantized, as bytes."""
        lengths = [len(rows) for _, _, rows in chunks]
        total = sum(lengths)
        self.qkv.rows(total)[:] = np.concatenate([rows for _, _, rows in chunks]).reshape(total, -1).view(np.uint8)
        self.attended.rows(total)[:] = self.out.rows(total)[:] = 0xFF  # nothing is left of the step before
        ends = [start + len(rows) for _, start, rows in chunks]
        tables = [
            self.tables[index][: -(-end // self.block_size)] for (index, _, _), end in zip(chunks, ends, strict=True)
        ]
        self.forward.run(
            np.zeros(total, np.int32),
            np.array([start for _, start, _ in chunks], np.int32),
            np.array(lengths, np.int32),
            np.zeros(len(chunks), np.int32),
            np.concatenate(tables),
        )
        rows = np.concatenate([self.attended.rows(total), self.out.rows(total)], axis=1)
        return [part.tobytes() for part in np.split(rows, np.cumsum(lengths))[:-1]]

    def stored(self, sequence: int, num_tokens: int) -> tuple[Side, Side]:
        """What the cache keeps of a sequence's keys and values."""
        pages = self.data.reshape(LAYERS, -1, self.shape.num_kv_heads, self.block_size // PAGE, 2, self._side_bytes)
        return decode(self.kv_format, pages[LAYER], self.tables[sequence], num_tokens, self.shape.head_dim)

    def floats(self, rows: bytes) -> Array:
        """The float32 part of rows, ``[num_tokens, num_heads, head_dim]``."""
        width = self.attended.row_bytes
        table = np.frombuffer(rows, np.uint8).reshape(-1, width + self.out.row_bytes)[:, :width]
        return np.ascontiguousarray(table).view(np.float32).reshape(-1, self.shape.num_heads, self.shape.head_dim)


def run_alone(kv_format: Any, shape: Shape, rows: Array, **kwargs: Any) -> Array:
    world = World(kv_format, shape, [len(rows)], **kwargs)
    return world.floats(world.step([(0, 0, rows)])[0])


def reference(shape: Shape, queries: Array, keys: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Causal attention in float64, without positions."""
    group = shape.num_heads // shape.num_kv_heads
    keys, values = (x.astype(np.float64).repeat(group, 1) for x in (keys, values))
    scores = np.einsum("qhd,khd->hqk", queries.astype(np.float64), keys) * shape.head_dim**-0.5
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_format", FORMATS)
@settings(max_examples=10)
@given(data=st.data())
def test_equals_attention_in_float64(kv_format: Any, isa: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    num_tokens = data.draw(st.integers(1, 300))
    rows = shape.draw(data.draw(st.integers(0, 99)), num_tokens)
    rows[:, : shape.num_heads] *= data.draw(st.sampled_from([0.0, 1e-3, 1.0, 100.0]))  # from a mean to a maximum
    world = World(kv_format, shape, [num_tokens], isa=isa, turned=False, garbage=data.draw(st.sampled_from(GARBAGE)))
    out = world.floats(world.step([(0, 0, rows)])[0])
    expected = reference(shape, rows[:, : shape.num_heads], *(side.plain for side in world.stored(0, num_tokens)))
    # A score's error is relative to the terms of its sum, and becomes a weight's.
    largest_term = np.abs(rows).max() ** 2 * max(1.0, np.abs(rows[:, : shape.num_heads]).max() / 8)
    np.testing.assert_allclose(out, expected, atol=3e-6 * largest_term, rtol=0)


@settings(max_examples=40)
@given(data=st.data(), kv_format=st.sampled_from(FORMATS), isa=st.sampled_from(ISAS))
def test_bits_depend_on_the_own_sequence_alone(data: st.DataObject, kv_format: Any, isa: str) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    lengths = data.draw(st.lists(st.integers(1, 60) | st.integers(100, 300), min_size=1, max_size=5))
    sequences = [shape.draw(seed, length) for seed, length in enumerate(lengths)]
    alone = []
    for rows in sequences:
        world = World(kv_format, shape, [len(rows)], isa=isa)
        alone.append(world.step([(0, 0, rows)])[0])

    world = World(
        kv_format,
        shape,
        lengths,
        block_size=data.draw(st.sampled_from([16, 32, 64])),
        num_threads=data.draw(st.integers(1, 2)),
        seed=data.draw(st.integers(0, 99)),
        garbage=data.draw(st.sampled_from(GARBAGE)),
        isa=isa,
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    longest = [data.draw(st.sampled_from([1, 3, 9, 40, 300])) for _ in lengths]
    together = [b"" for _ in lengths]
    starts = [0 for _ in lengths]
    while unfinished := [i for i, length in enumerate(lengths) if starts[i] < length]:
        chosen = [int(i) for i in rng.permutation(unfinished)[: rng.integers(1, len(unfinished) + 1)]]
        ends = [min(lengths[i], starts[i] + int(rng.integers(1, longest[i] + 1))) for i in chosen]
        chunks = [(i, starts[i], sequences[i][starts[i] : end]) for i, end in zip(chosen, ends, strict=True)]
        for i, end, out in zip(chosen, ends, world.step(chunks), strict=True):
            together[i] += out
            starts[i] = end
    assert together == alone


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_long_row_that_is_cut_among_threads_keeps_its_bits(kv_format: Any) -> None:
    shape = SHAPES[0]
    rows = shape.draw(0, 1500)
    world = World(kv_format, shape, [1500])
    alone = world.step([(0, 0, rows)])[0]
    split = World(kv_format, shape, [1500], num_threads=2)
    parts = [split.step([(0, start, rows[start:end])])[0] for start, end in ((0, 1490), (1490, 1499), (1499, 1500))]
    assert b"".join(parts) == alone


def test_instruction_sets_with_fused_products_agree() -> None:
    fused = [isa for isa in ISAS if isa != "portable"]
    for kv_format in FORMATS:
        rows = SHAPES[0].draw(0, 200)
        outs = {run_alone(kv_format, SHAPES[0], rows, isa=isa).tobytes() for isa in fused}
        assert len(outs) <= 1


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("kv_format", FORMATS)
@settings(max_examples=15)
@given(data=st.data())
def test_what_is_not_finite_stays_with_the_rows_that_see_it(kv_format: Any, part: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    length = data.draw(st.integers(2, 200))
    at = data.draw(st.integers(0, length - 1))
    bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    sequences = [shape.draw(seed, length) for seed in range(2)]
    world = World(kv_format, shape, [length] * 2)
    whole = [world.floats(rows) for rows in world.step([(i, 0, sequences[i]) for i in range(2)])]

    head = {"query": 0, "key": shape.num_heads, "value": shape.num_heads + shape.num_kv_heads}[part]
    dimension = data.draw(st.integers(0, shape.head_dim - 1))
    sequences[0][at, head, dimension] = bad
    world = World(kv_format, shape, [length] * 2, num_threads=2)
    own, other = (world.floats(rows) for rows in world.step([(i, 0, sequences[i]) for i in range(2)]))
    np.testing.assert_array_equal(other, whole[1])
    group = shape.num_heads // shape.num_kv_heads
    if part == "query":
        assert np.isnan(own[at, 0]).all()
        own[at, 0] = whole[0][at, 0]
    elif part == "key":
        assert np.isnan(own[at:, :group]).all()
        own[at:, :group] = whole[0][at:, :group]
    else:
        shared = KV_GROUP if kv_format.name in LARGEST else 1  # dimensions that have one scale
        of_scale = slice(dimension // shared * shared, (dimension // shared + 1) * shared)
        assert not np.isfinite(own[at:, :group, of_scale]).any()
        own[at:, :group, of_scale] = whole[0][at:, :group, of_scale]
    np.testing.assert_array_equal(own, whole[0])


@settings(max_examples=20)
@given(num_tokens=st.integers(1, 40), start=st.integers(0, 5000), shape=st.sampled_from(SHAPES))
def test_queries_and_keys_are_turned_as_by_torch(num_tokens: int, start: int, shape: Shape) -> None:
    rows = shape.draw(0, num_tokens)
    world = World(KVFormat.FLOAT32, shape, [start + num_tokens], seed=1, garbage=0)
    world.step([(0, start, rows)])
    positions = torch.arange(start, start + num_tokens)
    angles = positions.float()[:, None] * torch.from_numpy(shape.inverse_frequencies)
    expected = rotate(torch.from_numpy(rows), angles.cos()[:, None], angles.sin()[:, None]).numpy()
    after = world.qkv.rows(num_tokens).view(np.float32).reshape(rows.shape)
    queries = expected[:, : shape.num_heads] * np.float32(shape.head_dim**-0.5)
    np.testing.assert_allclose(after[:, : shape.num_heads], queries, atol=1e-6)

    pages = world.data.view(np.float32).reshape(LAYERS, -1, shape.num_kv_heads, 2, 16 * shape.head_dim)[LAYER]
    slots = world.tables[0][positions // 16]
    keys = pages[slots, :, 0].reshape(num_tokens, shape.num_kv_heads, shape.head_dim, 16)
    values = pages[slots, :, 1].reshape(num_tokens, shape.num_kv_heads, 16, shape.head_dim)
    each = np.arange(num_tokens)
    np.testing.assert_allclose(
        keys[each, :, :, positions % 16],
        expected[:, shape.num_heads : shape.num_heads + shape.num_kv_heads],
        atol=3e-6,
    )
    np.testing.assert_array_equal(values[each, :, positions % 16], rows[:, shape.num_heads + shape.num_kv_heads :])


@pytest.mark.parametrize(
    ("kv_format", "block_size", "head_dim", "message"),
    [
        (KVFormat.FLOAT32, 24, 64, "block_size"),
        (KVFormat.FLOAT32, 0, 64, "block_size"),
        (KVFormat.BFLOAT16, 16, 48, "head_dim"),
        (KVFormat.INT8, 16, 48, "head_dim"),
        (KVFormat.INT4, 16, 16, "head_dim"),
        (KVFormat.INT4, 16, 320, "head_dim"),
    ],
)
def test_shapes_that_the_kernels_cannot_serve(kv_format: Any, block_size: int, head_dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.KVCache(kv_format, np.zeros(0, np.uint8), 1, 1, block_size, 1, head_dim)


def test_heads_that_the_cache_does_not_divide() -> None:
    with pytest.raises(ValueError, match="num_heads"):
        World(KVFormat.FLOAT32, Shape(2, 3, 64), [1])
