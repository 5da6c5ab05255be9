"""Each operation of the native kernels in each instruction set: against float64, and exactly where integers allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.native import kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st

from native.single import ISAS, by_halves, decode, floats, hadamard, run

Basis, WeightFormat = kernels.Basis, kernels.WeightFormat
SIZES = [1, 31, 32, 33, 64, 100, 576]
KINDS = ["normal", "outliers", "tiny", "huge", "zeros", "constant"]


def draw(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "outliers":
        x *= np.where(rng.random(shape) < 0.02, 1000, 1)
    return (x * {"tiny": 1e-30, "huge": 1e17, "zeros": 0}.get(kind, 1) if kind != "constant" else 0 * x + 3).astype(
        "f4"
    )


def pack_int8(weights: Any) -> Any:
    num_outputs, num_inputs = weights.shape
    packed = np.zeros(kernels.weight_bytes(WeightFormat.INT8, num_outputs, num_inputs), np.uint8)
    kernels.pack_int8(weights, packed)
    return kernels.Weights(WeightFormat.INT8, packed, num_outputs, num_inputs)


def read(weights: Any, num_outputs: int, num_inputs: int) -> Any:
    """The plain numbers that packed weights stand for, by the operation that looks embeddings up."""
    buffers: list[Any] = []

    def build(program: Any) -> None:
        buffers.append(program.buffer(4 * num_inputs))
        program.embedding(weights, buffers[0])

    run("portable", num_outputs, build)
    return floats(buffers[0], num_outputs).astype(np.float64)


def blocks_of(rng: np.random.Generator, kind: str, num_outputs: int, num_inputs: int) -> tuple[Any, Any]:
    """Random GGUF blocks, and the weights they stand for."""
    shape = (num_outputs, num_inputs // 32)
    scale = (rng.standard_normal(shape) * 0.02).astype(np.float16)
    minimum = (rng.standard_normal(shape) * 0.1).astype(np.float16)
    q = rng.integers(0, 16, (*shape, 32)).astype(np.uint8)
    packed = q[..., :16] | q[..., 16:] << 4
    parts = [scale.view(np.uint8).reshape(*shape, 2), packed]
    if kind == "Q4_1":
        parts.insert(1, minimum.view(np.uint8).reshape(*shape, 2))
    least = minimum.astype(np.float64) if kind == "Q4_1" else -8 * scale.astype(np.float64)
    weights = scale.astype(np.float64)[..., None] * q + least[..., None]
    return np.concatenate(parts, -1).reshape(num_outputs, -1), weights.reshape(num_outputs, num_inputs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("basis", [Basis.PLAIN, Basis.ROTATED])
def test_rms_norm_quantises_to_half_a_step(isa: str, kind: str, basis: Any) -> None:
    for size in SIZES:
        x, weight, buffers = draw(kind, (3, size), size), draw("normal", (size,), 1), []

        def build(program: Any, x: Any = x, weight: Any = weight, buffers: list[Any] = buffers) -> None:
            source = program.buffer(x[0].nbytes)
            buffers += [source, program.buffer(kernels.quantized_bytes(len(weight)))]
            source.rows(len(x)).view(np.float32)[:] = x
            program.rms_norm("norm", source, weight, 1e-5, buffers[1], basis)

        run(isa, 3, build)
        wide = x.astype(np.float64)
        expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
        found, records = decode(buffers[1], 3, basis == Basis.ROTATED)
        halves = by_halves(expected) if basis == Basis.PLAIN else by_halves(expected) @ hadamard() / 32
        got = by_halves(found) if basis == Basis.PLAIN else by_halves(found) @ hadamard() / 32
        steps = records["scale"].astype(np.float64).repeat(2, -1)[..., None]
        assert (np.abs(got - halves) <= 0.502 * steps + 1e-5 * np.abs(halves)).all()
        sums = records["values"].reshape(3, -1, 32).sum(-1).reshape(3, -1, 2)
        corrections = records["corrections"]
        if basis == Basis.PLAIN:
            assert (corrections.copy().view(np.float32) == sums).all()
        else:
            assert (corrections == -128 * sums).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_its_own_row_only(isa: str, poison: float) -> None:
    x, weights = draw("normal", (3, 100), 0), draw("normal", (40, 100), 1)
    clean, _ = linear(isa, x, pack_int8(weights), 40)
    x[1, 70] = poison
    found, _ = linear(isa, x, pack_int8(weights), 40)
    assert np.isnan(found[1]).all()
    assert (found[[0, 2]] == clean[[0, 2]]).all()


def linear(isa: str, x: Any, weights: Any, num_outputs: int, num_threads: int = 1, add_to: Any = None) -> Any:
    """``x . weights``, quantised by an RMS-norm on the way; and the plain numbers that the quantised rows stand for."""
    num_rows, size = x.shape
    buffers: list[Any] = []

    def build(program: Any) -> None:
        source, normed = program.buffer(4 * size), program.buffer(kernels.quantized_bytes(size))
        buffers.extend([program.buffer(4 * num_outputs), normed])
        source.rows(num_rows).view(np.float32)[:] = x
        if add_to is not None:
            floats(buffers[0], num_rows)[:] = add_to
        program.rms_norm("norm", source, np.ones(size, np.float32), 0.0, normed, weights.basis)
        program.linear("linear", normed, weights, buffers[0], add=add_to is not None)

    run(isa, num_rows, build, num_threads)
    return floats(buffers[0], num_rows).copy(), decode(buffers[1], num_rows, weights.basis == Basis.ROTATED)[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(1, 1), (33, 70), (64, 32), (100, 33), (576, 96)])
def test_products_equal_float64_of_what_is_stored(isa: str, num_inputs: int, num_outputs: int) -> None:
    for kind in ("normal", "outliers"):
        w = draw(kind, (num_outputs, num_inputs), 2)
        weights = pack_int8(w)
        stored = read(weights, num_outputs, num_inputs)
        assert np.abs(stored - w).max() <= np.abs(by_halves(w) @ hadamard()).max() / 127 / 2 * 1.01
        for num_rows in (1, 2, 3, 7, 8, 9, 17):
            x = draw(kind, (num_rows, num_inputs), num_rows)
            found, quantised = linear(isa, x, weights, num_outputs)
            operand = quantised[:, :num_inputs]
            # what quantising put behind the last input meets weights of zero
            bound = np.abs(operand) @ np.abs(stored).T + 1e-30
            assert (np.abs(found - operand @ stored.T) <= 2e-6 * num_inputs**0.5 * bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_4_bit_blocks_lose_nothing(isa: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    rows, exact = blocks_of(rng, kind, 70, 96)
    for format in (WeightFormat.Q4, WeightFormat.INT8):
        packed = np.zeros(kernels.weight_bytes(format, 70, 96), np.uint8)
        kernels.pack_blocks(format, kernels.BlockFormat[kind], rows, 96, packed)
        weights = kernels.Weights(format, packed, 70, 96)
        stored = read(weights, 70, 96)
        scale = np.abs(exact.reshape(70, 3, 32)).max(-1).repeat(32, -1)
        if format == WeightFormat.Q4 or kind == "Q4_0":
            assert (np.abs(stored - exact) <= 1e-6 * scale).all()
        x = draw("normal", (9, 96), 4)
        found, quantised = linear(isa, x, weights, 70)
        operand = quantised[:, :96]
        assert np.allclose(found, operand @ stored.T, atol=2e-5, rtol=2e-5)


def test_the_minimum_of_a_4_bit_block_is_rounded_to_a_64th_of_its_scale() -> None:
    values = np.random.default_rng(5).integers(0, 256, 16).astype(np.uint8)
    for minimum in (-0.08, -0.0751, -0.07499, -0.1):
        scale, least = np.float16(0.01), np.float16(minimum)
        row = np.concatenate([np.array([scale, least]).view(np.uint8), values])[None]
        packed = np.zeros(kernels.weight_bytes(WeightFormat.INT8, 1, 32), np.uint8)
        kernels.pack_blocks(WeightFormat.INT8, kernels.BlockFormat.Q4_1, row, 32, packed)
        stored = read(kernels.Weights(WeightFormat.INT8, packed, 1, 32), 1, 32)[0]
        q = np.concatenate([values & 15, values >> 4])
        exact = float(scale) * q + float(least)
        assert np.abs(stored - exact).max() <= float(scale) / 64 * 1.0001
        assert np.ptp(stored - exact) <= 1e-7  # the same for all


@pytest.mark.parametrize("isa", ISAS)
def test_4_bit_blocks_that_do_not_fit_are_rounded(isa: str) -> None:
    values = np.full(16, 0xFF, np.uint8)  # all 15: the first rotated number is 224 scales, more than 127
    row = np.concatenate([np.array([np.float16(0.01), np.float16(0.0)]).view(np.uint8), values])[None]
    packed = np.zeros(kernels.weight_bytes(WeightFormat.INT8, 1, 32), np.uint8)
    kernels.pack_blocks(WeightFormat.INT8, kernels.BlockFormat.Q4_1, row, 32, packed)
    stored = read(kernels.Weights(WeightFormat.INT8, packed, 1, 32), 1, 32)
    assert np.allclose(stored, 0.15, rtol=0.005)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(
    num_rows=st.integers(1, 40),
    num_threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
    q4=st.booleans(),
)
def test_a_row_has_the_same_bits_in_any_company(isa: str, num_rows: int, num_threads: int, seed: int, q4: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, _ = blocks_of(rng, "Q4_1", 130, 160)
    format = WeightFormat.Q4 if q4 else WeightFormat.INT8
    packed = np.zeros(kernels.weight_bytes(format, 130, 160), np.uint8)
    kernels.pack_blocks(format, kernels.BlockFormat.Q4_1, rows, 160, packed)
    weights = kernels.Weights(format, packed, 130, 160, np.pad(rng.standard_normal(130), (0, 30)).astype("f4"))
    x = draw("outliers", (num_rows, 160), seed)
    add_to = draw("normal", (num_rows, 130), seed + 1)
    together, _ = linear(isa, x, weights, 130, num_threads, add_to)
    for row in {0, num_rows // 2, num_rows - 1}:
        alone, _ = linear(isa, x[row : row + 1], weights, 130, 1, add_to[row : row + 1])
        assert alone.tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("basis", [Basis.PLAIN, Basis.ROTATED])
def test_swiglu_equals_float64(isa: str, basis: Any) -> None:
    intermediate, hidden = 128, 64
    gate, up = draw("normal", (intermediate, hidden), 1), draw("normal", (intermediate, hidden), 2)
    turns = np.concatenate([part for i in range(0, intermediate, 64) for part in (gate[i : i + 64], up[i : i + 64])])
    weights = pack_int8(turns)
    stored = read(weights, 2 * intermediate, hidden)
    x = 3 * draw("normal", (11, hidden), 3)
    buffers: list[Any] = []

    def build(program: Any) -> None:
        source, normed = program.buffer(4 * hidden), program.buffer(kernels.quantized_bytes(hidden))
        buffers.extend([program.buffer(kernels.quantized_bytes(intermediate)), normed])
        source.rows(11).view(np.float32)[:] = x
        program.rms_norm("norm", source, np.full(hidden, 4, np.float32), 0.0, normed, weights.basis)
        program.swiglu("swiglu", normed, weights, buffers[0], basis)

    run(isa, 11, build, 2)
    operand = decode(buffers[1], 11, True)[0]
    product = (operand @ stored.T).reshape(11, -1, 2, 64)
    gates, ups = product[:, :, 0].reshape(11, -1), product[:, :, 1].reshape(11, -1)
    expected = gates / (1 + np.exp(-gates)) * ups
    found, records = decode(buffers[0], 11, basis == Basis.ROTATED)
    spread = 0.51 * records["scale"].repeat(64, -1) * (32**0.5 * 6 if basis == Basis.ROTATED else 1)
    assert (np.abs(found - expected) <= spread + 1e-4 * np.abs(expected)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 49152])
def test_argmax_is_the_first_of_equals_and_refuses_what_is_not_finite(isa: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(-5, 5, (6, size)).astype(np.float32)
    x[1] = -3e38
    x[3, size // 2] = np.nan
    x[4, -1] = -np.inf
    x[5, 0] = np.inf
    buffers: list[Any] = []

    def build(program: Any) -> None:
        source = program.buffer(4 * size, kernels.Rows.LOGITS)
        buffers.append(program.buffer(4, kernels.Rows.LOGITS))
        source.rows(6).view(np.float32)[:] = x
        program.argmax(source, size, buffers[0])

    run(isa, 6, build, 2)
    assert buffers[0].rows(6).view(np.int32)[:, 0].tolist() == [*x[:3].argmax(-1).tolist(), -1, -1, -1]


def test_bad_programs_and_steps_are_refused() -> None:
    program = kernels.ForwardPass(1, kernels.choose_isa("portable"), 10, 16, 4)
    small, weights = program.buffer(4), pack_int8(draw("normal", (32, 64), 0))
    with pytest.raises(ValueError, match="too small"):
        program.linear("x", small, weights, small)
    with pytest.raises(ValueError, match="size that their shape needs"):
        kernels.Weights(WeightFormat.INT8, np.zeros(5, np.uint8), 32, 64)
    with pytest.raises(ValueError, match="fewer than no rows"):
        small.rows(-1)
    with pytest.raises(ValueError, match="out is of another size"):
        kernels.pack_int8(np.zeros((32, 64), np.float32), np.zeros(5, np.uint8))

    def step(ids: list[int], start: int, q_len: int, num_logits: int, table: list[int]) -> None:
        arrays = [np.array(x, np.int32) for x in (ids, [start], [q_len], [num_logits], table)]
        program.run(*arrays)

    step([1, 2], 0, 2, 1, [0])
    for bad, words in (
        (([10], 0, 1, 0, [0]), "vocabulary"),
        (([-1], 0, 1, 0, [0]), "vocabulary"),
        (([1], 0, 1, 0, [4]), "not in the pool"),
        (([1], 0, 2, 0, [0]), "fewer tokens"),
        (([1, 2], 0, 1, 0, [0]), "all must be a sequence's"),
        (([1], 16, 1, 0, [0]), "do not hold"),
        (([1], 0, 1, 2, [0]), "out of range"),
        (([1], -1, 1, 0, [0]), "out of range"),
        (([], 0, 0, 0, []), "out of range"),
    ):
        with pytest.raises(ValueError, match=words):
            step(*bad)


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="avx512_vnni, avx2, portable"):
        kernels.choose_isa("sse2")
