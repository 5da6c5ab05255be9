"""The arithmetic of memory: held to published models, to the kernels' own sizes, and to itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inflight.assemble import largest_step
from inflight.hub.resolve import ModelFiles
from inflight.native import kernels
from inflight.runtime.config import GIB, RuntimeConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.kv import paged
from inflight.runtime.kv.base import BlockStore
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.kv.formats import GROUP_FORMATS
from inflight.runtime.kv.grouped import GroupedKV
from inflight.runtime.load import TORCH_DTYPES, open_checkpoint, usual_step
from inflight.runtime.memory_demand import (
    KV_FORMATS,
    Demand,
    common_kv_token_bytes,
    kv_token_bytes,
    native_demand,
    torch_demand,
)
from inflight.runtime.memory_plan import plan_memory, plan_notes
from inflight.runtime.models import llama_sizes
from inflight.runtime.models.base import ModelConfig
from inflight.runtime.models.llama_sizes import StepSize, count_parameters, native_weight_bytes
from inflight.runtime.weights.config_alone import ConfigAlone
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, StaticConfig

LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
LLAMA_3_8B = LLAMA_2_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
LLAMA_2_70B = LLAMA_2_7B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
MULTI_QUERY = LLAMA_2_7B | {"num_key_value_heads": 1}  # Llama 2 7B with one KV head


def read(folder: Path, settings: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(settings))
    return ConfigAlone(folder / "config.json").config


@pytest.mark.parametrize(
    ("settings", "kind", "num_parameters", "bfloat16_token_bytes", "ratio"),
    [
        (LLAMA_2_7B, "MHA", 6_738_415_616, 524_288, 1),
        (LLAMA_3_8B, "GQA", 8_030_261_248, 131_072, 4),
        (LLAMA_2_70B, "GQA", 68_976_648_192, 327_680, 8),
        (MULTI_QUERY, "MQA", 6_738_415_616 - 32 * 2 * 4096 * (4096 - 128), 16_384, 32),
    ],
    ids=["llama-2-7b", "llama-3-8b", "llama-2-70b", "multi-query"],
)
def test_published_models_from_their_configuration_alone(
    tmp_path: Path,
    settings: dict[str, Any],
    kind: str,
    num_parameters: int,
    bfloat16_token_bytes: int,
    ratio: int,
) -> None:
    model = read(tmp_path, settings)
    assert model.attention_kind == kind
    assert model.num_parameters == num_parameters
    # KV counts the heads that store it; the common formula counts hidden_size, and is off by the size of a group.
    assert kv_token_bytes(model, "bfloat16") == bfloat16_token_bytes
    assert common_kv_token_bytes(model) == ratio * bfloat16_token_bytes


def test_biases_are_parameters(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA_2_7B | {"attention_bias": True, "mlp_bias": True})
    assert model.num_parameters == 6_738_415_616 + 32 * (4 * 4096 + 2 * 11008 + 4096)


def test_the_built_in_model_has_as_many_parameters_as_its_file_says(model_files: ModelFiles) -> None:
    model = open_checkpoint(model_files.path).config
    assert count_parameters(model) == model.num_parameters


@pytest.mark.skipif(kernels is None, reason="no native kernels here")
def test_sizes_are_those_of_the_kernels() -> None:
    for num_outputs, num_inputs in ((1, 1), (960, 576), (49152, 576), (33, 65), (3072, 1536)):
        bias_free = replace(SHAPE, hidden_size=num_inputs, vocab_size=num_outputs, num_hidden_layers=0)
        bias_free = replace(bias_free, num_parameters=count_parameters(bias_free))
        for name, format in (("int8", kernels.WeightFormat.INT8), ("q4", kernels.WeightFormat.Q4)):
            packed = kernels.weight_bytes(format, num_outputs, num_inputs)
            assert native_weight_bytes(bias_free, name, lambda _: True) == packed + 4 * num_inputs
    for size in (1, 64, 65, 576, 1536):
        assert llama_sizes._quantized(size) == kernels.quantized_bytes(size)


def stores(model: ModelConfig, kv_format: str) -> Iterator[BlockStore]:
    """One block in every store that has the format."""
    size = (1, 16, model.num_hidden_layers, model.num_key_value_heads, model.head_dim)
    if kv_format in GROUP_FORMATS:
        yield GroupedKV(*size, GROUP_FORMATS[kv_format], torch.device("cpu"))
    else:
        yield DenseKV(*size, TORCH_DTYPES[kv_format], torch.device("cpu"))
    if kernels is not None and kv_format in paged.FORMATS:
        yield paged.allocate(model, 1, 16, kv_format)[1]


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_block_takes_what_every_store_takes_for_it(kv_format: str, head_dim: int) -> None:
    model = replace(SHAPE, num_hidden_layers=2, head_dim=head_dim)
    demand = torch_demand(model, RuntimeConfig(kv_cache_dtype=kv_format))
    for store in stores(model, kv_format):
        assert store.bytes_per_block == demand.block_bytes
        assert sum(part.nbytes for part in store.block_parts(0)) == demand.block_bytes


SHAPE = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    rope_scaling=None,
    tie_word_embeddings=True,
    num_parameters=134_515_008,
    weight_format="Q4_1",
)
NATIVE = native_demand(SHAPE, RuntimeConfig(), "int8", 2, lambda _: False)


def test_the_arithmetic_is_said_and_is_right() -> None:
    plan = plan_memory(RuntimeConfig(), NATIVE, usual_step, 8 * GIB)
    assert plan.num_blocks == GIB // (16 * 30 * 2 * 3 * 64 * 2) == 2912
    notes = plan_notes(plan)
    assert "of 0.9 x 8.00 GiB available = 7.20 GiB" in notes[0]
    assert "GQA" in notes[2]
    assert "23,040 bytes of KV per token" in notes[2]
    assert notes[3] == (
        "KV: 1.00 GiB / (16 tokens x 30 layers x 2 x 3 heads x 64 dims x 2 bytes = 368,640 bytes per block) = "
        "2,912 blocks = 46,592 tokens"
    )
    assert notes[4] == "Host tier: 1,456 blocks = 0.50 GiB in host memory, touched when used"
    reserved = plan_memory(RuntimeConfig(memory_budget=4 * GIB, reserve_bytes=GIB), NATIVE, usual_step, 8 * GIB)
    assert "of 0.9 x 4.00 GiB of --memory-budget - 1.00 GiB reserved = 2.60 GiB" in plan_notes(reserved)[0]


@given(
    available=st.integers(0, 4 * GIB),
    budget=st.none() | st.integers(1, 4 * GIB),
    share=st.floats(0.01, 1.0),
    reserve=st.integers(0, GIB),
    kv=st.integers(1, 2 * GIB),
    swap=st.integers(0, GIB),
    file=st.booleans(),
    override=st.none() | st.integers(1, 4000),
    torch=st.booleans(),
    scheduler=st.sampled_from([ContinuousConfig(), StaticConfig(batch_size=64), DynamicConfig(padding=False)]),
)
def test_what_is_planned_fits_and_one_block_more_would_not(
    available: int,
    budget: int | None,
    share: float,
    reserve: int,
    kv: int,
    swap: int,
    file: bool,
    override: int | None,
    torch: bool,
    scheduler: Any,
) -> None:
    config = RuntimeConfig(
        memory_budget=budget,
        gpu_memory_utilization=share,
        reserve_bytes=reserve,
        kv_cache_memory_bytes=kv,
        swap_space_bytes=swap,
        swap_file=Path("swap") if file else None,
        num_gpu_blocks_override=override,
    )
    demand = torch_demand(SHAPE, config) if torch else NATIVE
    steps = partial(largest_step, scheduler, 16)
    total = available if budget is None else budget
    room = int(total * (share if override is None else 1)) - reserve
    host_bytes = swap // demand.block_bytes * demand.block_bytes

    def taken(num_blocks: int) -> int:
        activations = demand.activation_bytes(steps(SHAPE.max_position_embeddings, num_blocks))
        return demand.weight_bytes + activations + num_blocks * demand.block_bytes + (0 if file else host_bytes)

    declared = replace(config, memory_budget=max(total, 1))
    try:
        plan = plan_memory(declared, demand, steps, available=2**62)  # only the budget can refuse
    except InsufficientMemory:
        assert taken(override or 1) > room or (override is None and kv < demand.block_bytes)
        with pytest.raises(InsufficientMemory):
            plan_memory(config, demand, steps, available)
        return
    assert plan.num_blocks >= 1
    assert plan.host_bytes == host_bytes
    assert plan.taken_bytes == taken(plan.num_blocks) <= room
    if override is not None:
        assert plan.num_blocks == override
    else:
        assert plan.kv_bytes <= kv
        more = plan.num_blocks + 1
        assert taken(more) > room or more * demand.block_bytes > kv
    if plan.taken_bytes > available - reserve:
        with pytest.raises(InsufficientMemory, match="are available"):
            plan_memory(config, demand, steps, available)
    else:
        again = plan_memory(config, demand, steps, available)
        assert (again.num_blocks, again.num_host_blocks, again.step) == (
            plan.num_blocks,
            plan.num_host_blocks,
            plan.step,
        )


def test_what_is_free_pays_for_the_parts_and_the_reserve_to_the_byte() -> None:
    config = RuntimeConfig(memory_budget=4 * GIB, reserve_bytes=GIB // 4)
    plan = plan_memory(config, NATIVE, usual_step, 4 * GIB)
    enough = plan.taken_bytes + config.reserve_bytes
    assert plan_memory(config, NATIVE, usual_step, enough) == plan
    with pytest.raises(InsufficientMemory, match=r"are available, and 0\.25 GiB of them are reserved"):
        plan_memory(config, NATIVE, usual_step, enough - 1)


def test_a_larger_share_gives_as_many_blocks_or_more() -> None:
    shares = [
        plan_memory(
            RuntimeConfig(memory_budget=GIB, gpu_memory_utilization=percent / 100, swap_space_bytes=0),
            NATIVE,
            usual_step,
            GIB,
        ).num_blocks
        for percent in range(30, 100, 5)
    ]
    assert shares == sorted(shares)
    assert len(set(shares)) == len(shares)


@pytest.mark.parametrize("available", [GIB // 4, GIB // 2, 2 * GIB, 16 * GIB])
def test_a_host_tier_that_nobody_asked_for_takes_a_small_part(available: int) -> None:
    plan = plan_memory(RuntimeConfig(), NATIVE, usual_step, available)
    left = plan.budget.room_bytes - plan.demand.weight_bytes - plan.activation_bytes
    assert plan.host_bytes <= min(GIB // 2, left // 8)
    assert plan.num_host_blocks == min(GIB // 2, left // 8) // plan.demand.block_bytes


@pytest.mark.parametrize(
    ("settings", "available", "words"),
    [
        ({}, GIB // 8, ["134,515,008 parameters", "0.13 GiB", "0.9 x 0.12 GiB available = 0.11 GiB"]),
        (
            {"reserve_bytes": 7 * GIB, "swap_space_bytes": GIB // 2},
            8 * GIB,
            ["0.9 x 8.00 GiB available - 7.00 GiB reserved = 0.20 GiB", "0.50 GiB of the host tier"],
        ),
        ({"num_gpu_blocks_override": 10**6}, 8 * GIB, ["1,000,000 KV blocks", "343.32 GiB"]),
        ({"kv_cache_memory_bytes": 1000}, 8 * GIB, ["one KV block of 368,640 bytes", "1,000 bytes for KV"]),
        (
            {"memory_budget": 4 * GIB, "swap_space_bytes": GIB // 2},
            GIB,
            [
                "together 1.71 GiB",
                "of 0.9 x 4.00 GiB of --memory-budget",
                "only 1.00 GiB are available",
                "0.00 GiB of them",
            ],
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    settings: dict[str, Any], available: int, words: list[str]
) -> None:
    with pytest.raises(InsufficientMemory) as refused:
        plan_memory(RuntimeConfig(**settings), NATIVE, usual_step, available)
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (ContinuousConfig(), (2048, 32)),
        (ContinuousConfig(max_num_batched_tokens=96), (96, 32)),
        (ContinuousConfig(enable_chunked_prefill=False), (8192, 32)),
        (ContinuousConfig(max_num_seqs=4000), (4016, 4000)),
        (StaticConfig(batch_size=64, max_model_len=1000), (64_000, 64)),
        (StaticConfig(batch_size=64, max_model_len=1000, padding=False), (1000 * 16, 64)),
        (DynamicConfig(max_batch_size=4, max_tokens_in_batch=3000), (3000, 4)),
    ],
    ids=str,
)
def test_the_largest_step_is_that_of_the_scheduler(scheduler: Any, expected: tuple[int, int]) -> None:
    step = largest_step(scheduler, 16, 8192, 1000)
    assert (step.num_tokens, step.num_logits) == expected


def test_a_wide_rectangle_is_counted() -> None:
    """64 rows padded to 1,000 tokens: the buffers take what a step of 64,000 tokens takes."""
    num_bytes = llama_sizes.native_buffer_bytes(SHAPE, StepSize(64_000, 64, 1000))
    assert 0.75e9 < num_bytes < 0.85e9
    static = StaticConfig(batch_size=64, max_model_len=1000)
    plan = plan_memory(RuntimeConfig(), NATIVE, partial(largest_step, static, 16), 8 * GIB)
    assert plan.step == StepSize(64_000, 64, 1000)
    assert plan.activation_bytes > num_bytes


@given(num_tokens=st.integers(1, 5000), more=st.integers(0, 5000), rows=st.integers(1, 64))
def test_larger_steps_take_no_less(num_tokens: int, more: int, rows: int) -> None:
    for demand in (NATIVE, torch_demand(SHAPE, RuntimeConfig())):
        small, large = (demand.activation_bytes(StepSize(n, rows, 8192)) for n in (num_tokens, num_tokens + more))
        assert small <= large


def test_demand_is_of_the_format_that_is_stored() -> None:
    for dtype, name in (("auto", "bfloat16"), ("float", "float32"), ("int8", "int8")):
        demand = native_demand(SHAPE, RuntimeConfig(kv_cache_dtype=dtype), "int8", 1, lambda _: False)
        assert isinstance(demand, Demand)
        assert demand.kv_format == name
    assert torch_demand(SHAPE, RuntimeConfig(dtype="half")).kv_format == "float16"
    assert torch_demand(SHAPE, RuntimeConfig(dtype="half")).weight_bytes == 2 * SHAPE.num_parameters


@pytest.mark.parametrize(
    "settings",
    [{"memory_budget": 0}, {"memory_budget": 1.5}, {"reserve_bytes": -1}, {"swap_space_bytes": -1}, {"swap_file": 3}],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RuntimeConfig(**settings)
