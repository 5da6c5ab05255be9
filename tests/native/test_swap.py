"""KV that was swapped, or found in the prefix cache, has the same bits as KV that stayed: in the native kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.native import kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from tiers import SHAPE, WAYS, Run, load_with_swap_space, never_shared_nor_swapped, swap_to_and_fro
from torch_worlds import make_llama

from inflight.runtime.runner import ModelExecutor

FORMATS = [name.lower() for name in kernels.KVFormat.__members__]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_llama(folder, **SHAPE)
    return folder


@pytest.fixture(scope="module", params=FORMATS)
def executor(folder: Path, request: pytest.FixtureRequest) -> ModelExecutor:
    return load_with_swap_space(folder, quantization="int8", kv_cache_dtype=request.param)


@pytest.fixture(scope="module")
def reference(executor: ModelExecutor) -> Run:
    return never_shared_nor_swapped(executor)


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_bitwise_those_of_kv_that_stayed(executor: ModelExecutor, reference: Run, way: str) -> None:
    assert WAYS[way](executor).logits == reference.logits


def test_so_they_are_through_a_file(folder: Path, tmp_path: Path) -> None:
    executor = load_with_swap_space(folder, quantization="int8", swap_file=tmp_path / "swap")
    assert swap_to_and_fro(executor).logits == never_shared_nor_swapped(executor).logits
