"""Odd shapes run; files and settings that cannot be had are refused by name, before memory is taken for them."""

from __future__ import annotations

import json
import mmap
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from inflight.native import kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from test_gguf import write_gguf
from torch_worlds import VOCAB_SIZE, Driver, greedy, make_llama, seq

from inflight.core.errors import StepFailed
from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import InsufficientMemory, UnsupportedModel
from inflight.runtime.load import load_executor
from inflight.runtime.native_forward import NativeForward
from inflight.runtime.runner import ModelExecutor

SHAPE = {"hidden_size": 192, "intermediate_size": 128, "head_dim": 32, "initializer_range": 0.1}
Edit = Callable[[NDArray[Any]], NDArray[Any]]


def load(path: Path, **settings: Any) -> ModelExecutor:
    settings = {"num_threads": 1, "num_gpu_blocks_override": 64, "block_size": 16, "quantization": "int8"} | settings
    return load_executor(path, RuntimeConfig(**settings))


def logits(executor: ModelExecutor, num_tokens: int = 40) -> NDArray[np.float32]:
    """Logits of one prompt's tokens, all of them wanted."""
    assert executor._forward is not None
    ids = np.random.default_rng(0).integers(2, VOCAB_SIZE, num_tokens).tolist()
    blocks = tuple(range(-(-num_tokens // executor.capacity.block_size)))
    values = executor._forward.run((ScheduledSequence(seq(), tuple(ids), 0, blocks, num_tokens),)).values
    return values.numpy().copy()


def model(folder: Path, **overrides: Any) -> Path:
    folder.mkdir(exist_ok=True)
    make_llama(folder, **(SHAPE | overrides))
    return folder


@pytest.mark.parametrize(
    "shape",
    [
        {"intermediate_size": 1},
        {"intermediate_size": 80},  # the last group of gate and up has fewer rows than a block of columns
        {"intermediate_size": 96},
        {"vocab_size": 4097},  # more rows than are packed at once, and not in whole blocks of columns
        {"vocab_size": 5001, "tie_word_embeddings": True},
        {"vocab_size": 129},
        {"head_dim": 96},
        {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
        {"hidden_size": 97, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"hidden_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"hidden_size": 200, "num_attention_heads": 50, "num_key_value_heads": 1},
    ],
    ids=str,
)
def test_odd_shapes_run_as_in_torch(tmp_path: Path, shape: dict[str, Any]) -> None:
    path = model(tmp_path, **shape)
    found, expected = logits(load(path, num_threads=3)), logits(load(path, quantization="none"))
    assert np.sqrt(np.square(found - expected).mean()) < 0.1 * expected.std()


@pytest.mark.parametrize(("block_size", "num_threads"), [(48, 1), (4096, 8)])
def test_blocks_and_threads_change_no_bit(tmp_path: Path, block_size: int, num_threads: int) -> None:
    path = model(tmp_path)
    odd = load(path, block_size=block_size, num_threads=num_threads, num_gpu_blocks_override=4)
    assert logits(odd).tobytes() == logits(load(path)).tobytes()


def test_auto_runs_on_torch_what_the_kernels_cannot(tmp_path: Path) -> None:
    large = model(tmp_path / "large", head_dim=512, num_attention_heads=2, num_key_value_heads=1)
    executor = load(large, quantization="auto")
    assert "256" in executor.notes[0]
    assert not isinstance(executor._forward, NativeForward)
    usual = model(tmp_path / "usual")
    for kv_cache_dtype in ("half", "float16"):
        assert kv_cache_dtype in load(usual, quantization="auto", kv_cache_dtype=kv_cache_dtype).notes[0]
    assert isinstance(load(usual, kv_cache_dtype="float")._forward, NativeForward)  # float is float32
    odd = model(tmp_path / "odd", head_dim=48)
    for quantization in ("auto", "none"):
        for kv_cache_dtype in ("int8", "int4"):
            with pytest.raises(ValueError, match=r"head_dim must be a multiple of 32.*48"):
                load(odd, quantization=quantization, kv_cache_dtype=kv_cache_dtype)


def more(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, values])


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_1])
@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("blk.0.ffn_down.weight", more),
        ("blk.0.ffn_gate.weight", more),
        ("blk.0.attn_q.weight", more),
        ("blk.0.attn_k.weight", more),
        ("output.weight", more),
        ("blk.0.attn_v.bias", more),
        ("blk.0.attn_v.bias", lambda values: values[:32]),
        ("blk.0.attn_v.bias", lambda values: values.reshape(2, -1)),
        ("blk.0.ffn_down.weight", lambda values: values.reshape(-1)),
        ("blk.0.ffn_down.weight", lambda values: values.reshape(2, -1, values.shape[1])),
        ("blk.0.ffn_down.weight", lambda values: values[:-32]),
        ("blk.0.ffn_down.weight", lambda values: values[:, : values.shape[1] // 2]),
        ("token_embd.weight", lambda values: values[:0]),
    ],
)
def test_tensors_of_another_shape_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str, edit: Edit
) -> None:
    change(monkeypatch, lambda found, values: edit(values) if found == name else values)
    path = tmp_path / "model.gguf"
    write_gguf(path, make_llama(tmp_path, **SHAPE, attention_bias=True), kind)
    for quantization in ("int8", "q4") if kind == Kind.Q4_1 else ("int8",):
        with pytest.raises(UnsupportedModel) as caught:
            load(path, quantization=quantization)
        assert str(path) in str(caught.value)


def change(monkeypatch: pytest.MonkeyPatch, edit: Callable[[str, NDArray[Any]], NDArray[Any]]) -> None:
    """Edit every tensor on its way into a GGUF file."""
    add = gguf.GGUFWriter.add_tensor

    def changed(self: Any, name: str, tensor: NDArray[Any], **options: Any) -> None:
        add(self, name, np.ascontiguousarray(edit(name, np.array(tensor))), **options)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", changed)


@pytest.mark.parametrize("quantization", ["int8", "q4"])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("scale", [0.0, 6e-8, -0.01, 100.0])
def test_odd_scales_give_the_numbers_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, kind: Kind, quantization: str
) -> None:
    path = with_scale(tmp_path, monkeypatch, kind, scale)
    found, expected = logits(load(path, quantization=quantization)), logits(load(path, quantization="none"))
    assert np.sqrt(np.square(found - expected).mean()) < 0.1 * expected.std()


@pytest.mark.parametrize("quantization", ["int8", "q4"])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_weights_that_are_no_numbers_fail_rows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, kind: Kind, quantization: str
) -> None:
    driver = Driver(load(with_scale(tmp_path, monkeypatch, kind, scale), quantization=quantization))
    driver.add(seq(), range(2, 20), greedy())
    result = driver.run({seq(): 100})
    assert (len(result.failed), result.sampled) == (1, ())


def with_scale(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, scale: float) -> Path:
    """A model in which the first block of each row of one tensor has this scale."""

    def edit(name: str, values: NDArray[Any]) -> NDArray[Any]:
        if name == "blk.0.ffn_down.weight":
            values[:, :2] = np.array([scale], np.float16).view(np.uint8)
        return values

    change(monkeypatch, edit)
    write_gguf(folder / "model.gguf", make_llama(folder, **SHAPE), kind)
    return folder / "model.gguf"


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_hidden_layers": 2**31},
        {"num_hidden_layers": 1000},
        {"vocab_size": 2**31},
        {"vocab_size": 64},
        {"intermediate_size": 2**34},
        {"intermediate_size": 2**29},
        {"hidden_size": 2**31},
        {"head_dim": 2**32},
        {"num_key_value_heads": 1},
        {"num_attention_heads": 2**33, "num_key_value_heads": 2**33},
        {"num_attention_heads": 2**29, "num_key_value_heads": 1},
    ],
    ids=str,
)
def test_a_configuration_that_the_weights_do_not_bear_out_is_refused(tmp_path: Path, numbers: dict[str, int]) -> None:
    config = model(tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | numbers))
    with pytest.raises((UnsupportedModel, InsufficientMemory)):
        load(tmp_path)


def test_a_missing_tensor_is_refused_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = gguf.GGUFWriter.add_tensor

    def without(self: Any, name: str, tensor: NDArray[Any], **options: Any) -> None:
        if name != "blk.0.ffn_down.weight":
            add(self, name, tensor, **options)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", without)
    path = tmp_path / "model.gguf"
    write_gguf(path, make_llama(tmp_path, **SHAPE), Kind.Q4_1)
    for quantization in ("int8", "q4"):
        with pytest.raises(UnsupportedModel, match=r"model\.gguf.*blk\.0\.ffn_down\.weight"):
            load(path, quantization=quantization)


def test_a_damaged_gguf_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make_llama(tmp_path, **SHAPE), Kind.Q4_1)
    whole = path.read_bytes()
    header = int(gguf.GGUFReader(path).data_offset)
    draw = np.random.default_rng(0)
    cut = [whole[:at] for at in (*range(0, header, header // 30), *range(header, len(whole), len(whole) // 30))]
    flipped = []
    for _ in range(150):
        data = bytearray(whole)
        data[draw.integers(0, header)] = draw.integers(0, 256)
        flipped.append(bytes(data))
    for data in (*cut, *flipped):
        path.write_bytes(data)
        try:
            load(path)
        except (UnsupportedModel, InsufficientMemory, ValueError):
            continue
        assert data not in cut


@pytest.fixture
def _little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 300 * 2**20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_memory_that_the_system_refuses_is_said_so(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = model(tmp_path)
    load(path)
    request.getfixturevalue("_little_memory")
    with pytest.raises(InsufficientMemory):
        load(path, num_gpu_blocks_override=None, kv_cache_memory_bytes=2**30)


def test_a_system_without_huge_pages_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # advice that the system does not know
    assert np.isfinite(logits(load(model(tmp_path)))).all()


@pytest.mark.parametrize(("token_id", "block"), [(2**31, 0), (-(2**40), 0), (5, 2**31), (5, -1)])
def test_numbers_beyond_32_bits_fail_the_step(tmp_path: Path, token_id: int, block: int) -> None:
    executor = load(model(tmp_path))
    row = ScheduledSequence(seq(), (token_id,), 0, (block,), 1)
    with pytest.raises(StepFailed):
        executor.execute(SchedulerOutput("main", 0, (row,), new=(NewSequence(seq(), (5,), greedy(), ()),)))
    assert np.isfinite(logits(executor)).all()


def test_an_executor_may_be_used_from_another_thread_and_beside_another_one(tmp_path: Path) -> None:
    path = model(tmp_path)
    first, second = load(path, num_threads=2), load(path, num_threads=1)
    expected = logits(first).tobytes()
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda executor=executor: found.extend(logits(executor).tobytes() for _ in range(20)))
        for executor in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 40
