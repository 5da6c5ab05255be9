"""KV that was swapped, or found in the prefix cache, has the same bits as KV that stayed: in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import SHAPE, WAYS, Run, load_with_swap_space, never_shared_nor_swapped, swap_to_and_fro
from torch_worlds import make_llama

from inflight.native import NativeUnavailable, isa
from inflight.runtime.kv.formats import GROUP_FORMATS
from inflight.runtime.runner import ModelExecutor

FORMATS = [
    *(("none", dtype) for dtype in ("float32", "bfloat16", "float16", *GROUP_FORMATS)),  # in torch
    *(("int8", dtype) for dtype in ("float32", "bfloat16", *GROUP_FORMATS)),  # in the native kernels
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_llama(folder, **SHAPE)
    return folder


def loaded(folder: Path, quantization: str, **settings: Any) -> ModelExecutor:
    if quantization != "none":
        try:
            isa()
        except NativeUnavailable as unavailable:
            pytest.skip(str(unavailable))
    return load_with_swap_space(folder, quantization=quantization, **settings)


@pytest.fixture(scope="module", params=FORMATS, ids="-".join)
def executor(folder: Path, request: pytest.FixtureRequest) -> ModelExecutor:
    quantization, kv_cache_dtype = request.param
    return loaded(folder, quantization, kv_cache_dtype=kv_cache_dtype)


@pytest.fixture(scope="module")
def reference(executor: ModelExecutor) -> Run:
    return never_shared_nor_swapped(executor)


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_bitwise_those_of_kv_that_stayed(executor: ModelExecutor, reference: Run, way: str) -> None:
    assert WAYS[way](executor).logits == reference.logits


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_so_they_are_through_a_file(folder: Path, tmp_path: Path, quantization: str) -> None:
    executor = loaded(folder, quantization, swap_file=tmp_path / "swap")
    assert swap_to_and_fro(executor).logits == never_shared_nor_swapped(executor).logits
