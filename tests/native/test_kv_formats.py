"""What each KV format keeps: within a proven bound of the numbers, the same in every instruction set and in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inflight.native import kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from inflight.runtime.kv.base import KVStore
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.kv.formats import GROUP_FORMATS
from inflight.runtime.kv.grouped import SMALLEST, GroupedKV
from native.pages import KV_GROUP, LARGEST, Side
from native.single import ISAS, hadamard
from native.test_attention import SHAPES, Array, Shape, World, reference

KVFormat = kernels.KVFormat
SCALED = [KVFormat[name] for name in LARGEST]
SMALL = Shape(1, 1, 64)
CPU = torch.device("cpu")
ROUNDING = 2.0**-7 + 2.0**-20  # a scale goes up to the next bfloat16, at most so much; float32's own rounding beside it


def keep(kv_format: Any, rows: Array, shape: Shape = SMALL, isa: str | None = None) -> tuple[World, Side, Side]:
    """Store the keys and values of ``[num_tokens, num_heads + 2 * num_kv_heads, head_dim]``, not turned by position."""
    world = World(kv_format, shape, [len(rows)], isa=isa, turned=False)
    world.step([(0, 0, rows)])
    return world, *world.stored(0, len(rows))


def hostile(data: st.DataObject, num_tokens: int, shape: Shape = SMALL) -> Array:
    """Rows of many magnitudes, some numbers zero and some a thousand times the others."""
    rows = shape.draw(data.draw(st.integers(0, 99)), num_tokens).astype(np.float64)
    draw = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    exponents = data.draw(st.sampled_from([(0, 1), (-149, 121), (-110, -90), (100, 121)]))
    rows *= 2.0 ** draw.integers(*exponents, (*rows.shape[:2], 1))
    rows[draw.random(rows.shape) < 0.1] = 0
    rows[draw.random(rows.shape[:2]) < 0.1] = 0
    rows[draw.random(rows.shape) < 0.02] *= 1000 if exponents[1] < 100 else 1
    return rows.astype(np.float32)


def sides(shape: Shape, rows: Array) -> list[Array]:
    """Keys and values."""
    return np.split(rows, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)[1:]


def turned(x: Array) -> NDArray[np.float64]:
    """Groups in the basis in which they are rounded: ``[..., head_dim / 32, 32]``."""
    return x.reshape(*x.shape[:-1], -1, KV_GROUP).astype(np.float64) @ hadamard() / KV_GROUP


def largest_scale(kv_format: Any, x: Array) -> NDArray[np.float64]:
    """The largest that the scales of keys or values may be, ``[..., head_dim / 32]``."""
    return np.asarray(np.abs(turned(x)).max(-1) / LARGEST[kv_format.name] * (1 + ROUNDING))


@pytest.mark.parametrize("kv_format", SCALED)
@settings(max_examples=30)
@given(data=st.data())
def test_a_number_is_kept_within_half_a_step(kv_format: Any, data: st.DataObject) -> None:
    rows = hostile(data, 20)
    for x, side in zip(sides(SMALL, rows), keep(kv_format, rows)[1:], strict=True):
        assert side.scales is not None
        exact, top = turned(x), np.abs(turned(x)).max(-1)
        assert (side.scales <= largest_scale(kv_format, x)).all()
        assert (side.scales[top < SMALLEST / 2] == 0).all()
        smallest = np.where(top < 2 * SMALLEST, 0, top / LARGEST[kv_format.name] * (1 - 2.0**-20))
        assert (side.scales >= smallest).all()
        assert (np.abs(side.numbers) <= LARGEST[kv_format.name]).all()
        # Half a step, and what float32 lost of the turned numbers.
        bound = side.scales / 2 + 2.0**-20 * top + np.where(side.scales == 0, 2 * SMALLEST, 0)
        assert (np.abs(side.turned - exact) <= bound[..., None]).all()


@pytest.mark.parametrize("kv_format", [KVFormat.FLOAT32, KVFormat.BFLOAT16])
@settings(max_examples=15)
@given(data=st.data())
def test_a_float_is_kept_to_the_nearest(kv_format: Any, data: st.DataObject) -> None:
    rows = hostile(data, 20)
    for x, side in zip(sides(SMALL, rows), keep(kv_format, rows)[1:], strict=True):
        nearest = torch.from_numpy(x).bfloat16().float().numpy() if kv_format == KVFormat.BFLOAT16 else x
        np.testing.assert_array_equal(side.numbers, nearest)


@pytest.mark.parametrize("kv_format", list(KVFormat))
@settings(max_examples=10)
@given(data=st.data())
def test_every_instruction_set_and_torch_store_the_same_bits(kv_format: Any, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    rows = hostile(data, 20, shape)
    if data.draw(st.booleans()):
        bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
        rows[data.draw(st.integers(0, 19)), :, data.draw(st.integers(0, shape.head_dim - 1))] = bad
    kept = [keep(kv_format, rows, shape, isa) for isa in ISAS]
    assert len({world.data.tobytes() for world, _, _ in kept}) == 1
    keys, values = sides(shape, rows)
    partner = np.roll(~np.isfinite(keys), shape.head_dim // 2, -1)  # turning by position, even by nothing, spoils it
    keys = np.where(partner, np.float32(np.nan), keys)
    store = torch_store(kv_format, shape)
    store.write(0, torch.arange(20), torch.from_numpy(keys), torch.from_numpy(values))
    if isinstance(store, GroupedKV):
        for side, (numbers, scales) in zip(kept[0][1:], store._sides, strict=True):
            words = scales[0, :, :20].transpose(0, 1).float().numpy()
            np.testing.assert_array_equal(side.scales, words)
            decoded = store._format.decode(numbers[0, :, :20].unflatten(-1, (words.shape[-1], -1)))
            np.testing.assert_array_equal(side.numbers, decoded.flatten(-2).transpose(0, 1).numpy())
    read = [side.transpose(0, 1).numpy() for side in store.gather(0, torch.arange(20))]
    for x, side, found in zip((keys, values), kept[0][1:], read, strict=True):
        lost = np.abs(x).sum(-1, keepdims=True, dtype=np.float64) * 1e-6 + 1e-37
        assert (np.isnan(found) == np.isnan(side.plain)).all()
        with np.errstate(invalid="ignore"):
            assert (~np.isfinite(found) | ~np.isfinite(lost) | (np.abs(found - side.plain) <= lost)).all()


def torch_store(kv_format: Any, shape: Shape) -> KVStore:
    name, size = kv_format.name.lower(), (2, 16, 1, shape.num_kv_heads, shape.head_dim)
    if name in GROUP_FORMATS:
        return GroupedKV(*size, GROUP_FORMATS[name], CPU)
    return DenseKV(*size, getattr(torch, name), CPU)


@pytest.mark.parametrize("kv_format", SCALED)
@settings(max_examples=10)
@given(data=st.data())
def test_attention_is_within_the_bound_of_its_roundings(kv_format: Any, data: st.DataObject) -> None:
    """Scores that are off by at most d make weights off by a factor of exp(2 d) at most."""
    shape, num_tokens = data.draw(st.sampled_from(SHAPES)), data.draw(st.integers(1, 150))
    rows = shape.draw(data.draw(st.integers(0, 99)), num_tokens)
    queries = rows[:, : shape.num_heads]
    queries *= data.draw(st.sampled_from([0.0, 0.05, 1.0]))
    keys, values = sides(shape, rows)
    world, _, _ = keep(kv_format, rows, shape)
    found = world.floats(world.step([(0, 0, rows)])[0])
    # 32 errors of half a step: H makes their norm sqrt(32) times as large, and a single number's at most 32 times.
    key_norms = np.sqrt(((KV_GROUP / 2 * largest_scale(kv_format, keys)) ** 2).sum(-1))  # [num_tokens, num_kv_heads]
    value_error = KV_GROUP / 2 * largest_scale(kv_format, values).max()
    off = np.linalg.norm(queries, axis=-1).max() * key_norms.max() * shape.head_dim**-0.5
    exact = reference(shape, queries, keys, values)
    average = reference(shape, queries, keys, np.abs(values))
    bound = np.expm1(2 * off) * average + np.exp(2 * off) * value_error + 1e-4
    assert (np.abs(found - exact) <= bound).all()


def test_bytes_of_a_block_and_what_they_save() -> None:
    numbers = 30 * 3 * 64 * 2 * 32  # layers, heads, dimensions, keys and values, tokens
    scales = numbers // KV_GROUP * 2
    expected = {
        KVFormat.FLOAT32: 4 * numbers,
        KVFormat.BFLOAT16: 2 * numbers,
        KVFormat.INT8: numbers + scales,
        KVFormat.INT4: numbers // 2 + scales,
    }
    assert {one: kernels.kv_block_bytes(one, 30, 32, 3, 64) for one in KVFormat} == expected
    assert 1 - expected[KVFormat.INT8] / expected[KVFormat.BFLOAT16] == 0.46875
    assert 1 - expected[KVFormat.INT4] / expected[KVFormat.BFLOAT16] == 0.71875
    for one in KVFormat:
        store = torch_store(one, Shape(3, 3, 64))
        assert 60 * store.bytes_per_block == expected[one]  # of one layer and 16 tokens
        assert sum(part.numel() * part.itemsize for part in store.block_parts(0)) == store.bytes_per_block
