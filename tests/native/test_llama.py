"""Llama as native operations, against the same model in torch: every variant, every instruction set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inflight.native import MAX_ISA_VARIABLE, NativeUnavailable, isa, kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from torch_worlds import VOCAB_SIZE, Driver, greedy, make_llama, seq

from inflight.core.errors import StepFailed
from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.load import load_executor
from inflight.runtime.native_forward import NativeForward
from inflight.runtime.runner import ModelExecutor
from native.single import ISAS

SHAPE = {"hidden_size": 96, "intermediate_size": 100, "head_dim": 32, "initializer_range": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi_head": {"num_key_value_heads": 6},
    "multi_query": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "heads_of_64": {"head_dim": 64},
    "rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
}


def load(path: Path, **settings: Any) -> ModelExecutor:
    settings = {"num_threads": 1, "num_gpu_blocks_override": 64, "block_size": 16, "quantization": "int8"} | settings
    return load_executor(path, RuntimeConfig(**settings))


def logits_of(executor: ModelExecutor, token_ids: list[int]) -> torch.Tensor:
    forward = executor._forward
    assert forward is not None
    blocks = tuple(range(-(-len(token_ids) // forward.capacity.block_size)))
    row = ScheduledSequence(seq(), tuple(token_ids), 0, blocks, len(token_ids))
    return forward.run((row,)).values.clone()


@pytest.mark.parametrize("isa_name", ISAS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_torch_up_to_8_bits(
    tmp_path: Path, variant: str, isa_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_ISA_VARIABLE, isa_name)
    make_llama(tmp_path, **(SHAPE | VARIANTS[variant]))
    native, reference = load(tmp_path), load(tmp_path, quantization="none")
    assert isinstance(native._forward, NativeForward)
    token_ids = np.random.default_rng(0).integers(2, VOCAB_SIZE, size=150).tolist()
    found, expected = logits_of(native, token_ids), logits_of(reference, token_ids)
    spread = expected.std()
    assert (found - expected).abs().max() < 0.25 * spread
    assert (found - expected).pow(2).mean().sqrt() < 0.05 * spread


@pytest.mark.parametrize(("kv_cache_dtype", "tolerance"), [("int8", 0.05), ("int4", 0.25)])
def test_grouped_kv_gives_the_logits_of_torch(tmp_path: Path, kv_cache_dtype: str, tolerance: float) -> None:
    make_llama(tmp_path, **SHAPE)
    native, reference = (load(tmp_path, quantization=q, kv_cache_dtype=kv_cache_dtype) for q in ("int8", "none"))
    exact = load(tmp_path, quantization="none")
    token_ids = np.random.default_rng(0).integers(2, VOCAB_SIZE, size=150).tolist()
    found, expected, plain = (logits_of(executor, token_ids) for executor in (native, reference, exact))
    spread = plain.std()
    assert (found - expected).pow(2).mean().sqrt() < tolerance * spread
    assert 0 < (expected - plain).pow(2).mean().sqrt() < tolerance * spread


def test_chunks_company_and_preemption_change_no_token(tmp_path: Path) -> None:
    make_llama(tmp_path, **SHAPE)
    executor = load(tmp_path, num_threads=2)
    prompts = {seq(str(n)): list(range(2, 2 + n)) for n in (1, 17, 40)}
    alone = {}
    for seq_id, prompt in prompts.items():
        driver = Driver(executor)
        driver.add(seq_id, prompt, greedy(logprobs=5))
        driver.finish(8)
        alone[seq_id] = driver.sampled[seq_id][:8]
        driver.end()
    driver = Driver(executor)
    for seq_id, prompt in prompts.items():
        driver.add(seq_id, prompt, greedy(logprobs=5))
    for _ in range(4):
        driver.run(dict.fromkeys(prompts, 5))
    driver.preempt(seq("17"))
    driver.finish(8, chunk=7)
    assert {seq_id: tokens[:8] for seq_id, tokens in driver.sampled.items()} == alone
    driver.end()


def test_a_step_that_cannot_run_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    make_llama(tmp_path, **SHAPE)
    executor = load(tmp_path)
    new = NewSequence(seq(), (5, 6), greedy(), ())
    for token_ids, blocks, words in (
        ((VOCAB_SIZE, 6), (0,), "vocabulary"),
        ((5, 6), (64,), "pool"),
        ((5, 6), (), "hold"),
    ):
        row = ScheduledSequence(seq(), token_ids, 0, blocks, 1)
        with pytest.raises(StepFailed, match=words):
            executor.execute(SchedulerOutput("main", 0, (row,), new=(new,)))
    good = ScheduledSequence(seq(), (5, 6), 0, (3,), 1)
    assert len(executor.execute(SchedulerOutput("main", 1, (good,), new=(new,))).sampled) == 1


def test_several_threads_may_ask_for_steps(tmp_path: Path) -> None:
    make_llama(tmp_path, **SHAPE)
    executor = load(tmp_path, num_threads=2)

    def generate(name: int) -> list[int]:
        row = ScheduledSequence(seq(str(name)), tuple(range(2, 40)), 0, (3 * name, 3 * name + 1, 3 * name + 2), 1)
        new = (NewSequence(row.seq_id, row.token_ids, greedy(), ()),)
        steps = [executor.execute(SchedulerOutput("main", n, (row,), new=new)) for n in range(30)]
        return [step.sampled[0].tokens[0].token_id for step in steps]

    with ThreadPoolExecutor(4) as threads:
        tokens = list(threads.map(generate, range(4)))
    assert tokens == [[tokens[0][0]] * 30] * 4


def test_unfit_settings_and_models_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    make_llama(folder)  # heads of 8
    assert "multiple of 32" in load(folder, quantization="auto").notes[0]
    with pytest.raises(ValueError, match="multiple of 32"):
        load(folder)
    folder = tmp_path / "even"
    folder.mkdir()
    make_llama(folder, **SHAPE)
    with pytest.raises(UnsupportedModel, match="4-bit blocks"):
        load(folder, quantization="q4")
    with pytest.raises(ValueError, match="multiple of 16"):
        load(folder, block_size=8)
    with pytest.raises(ValueError, match="dtype must not be bfloat16"):
        load(folder, dtype="bfloat16")
    with pytest.raises(ValueError, match="float16"):
        load(folder, kv_cache_dtype="float16")
    assert "was asked for" in load(folder, quantization="auto", dtype="float32").notes[0]
    monkeypatch.setenv(MAX_ISA_VARIABLE, "none")
    with pytest.raises(NativeUnavailable, match="off"):
        isa()
    assert "are off" in load(folder, quantization="auto").notes[0]
    with pytest.raises(ValueError, match="are off"):
        load(folder)
    monkeypatch.setenv(MAX_ISA_VARIABLE, "sse9")
    with pytest.raises(ValueError, match="sse9"):
        load(folder)
