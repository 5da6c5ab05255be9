"""A step that finds no memory costs one request, and nothing of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from inflight.core.output import ScheduledSequence
from inflight.core.request import SamplingParams
from inflight.llm import LLM
from inflight.runtime.forward import StepLogits
from tiny_llama import write_tiny_llama

PROMPTS = [{"prompt_token_ids": [10 + i, 20 + i, 30 + i]} for i in range(4)]
HUNGRY = 2  # the prompt that no memory is found for


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(folder)
    return LLM(model=str(folder), num_gpu_blocks_override=64, max_num_batched_tokens=64, num_threads=1)


@pytest.mark.parametrize(
    "error", [MemoryError("std::bad_alloc"), torch.OutOfMemoryError("CUDA out of memory")], ids=str
)
@pytest.mark.parametrize("from_step", [0, 3], ids=["prefill", "decode"])
def test_an_allocation_that_fails_costs_one_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: Exception, from_step: int
) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, sampling, use_tqdm=False)]
    (executor,) = set(llm._engine.core._executors.values())
    run, hungry = executor._forward.run, {}

    def run_short_of_memory(scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        for row in scheduled:
            if row.start == 0 and row.token_ids[0] == PROMPTS[HUNGRY]["prompt_token_ids"][0]:
                hungry[row.seq_id] = True
            if row.seq_id in hungry and row.start + len(row.token_ids) >= 3 + from_step:
                raise error
        return run(scheduled)

    with monkeypatch.context() as patch:
        patch.setattr(executor._forward, "run", run_short_of_memory)
        outputs = [output.outputs[0] for output in llm.generate(PROMPTS, sampling, use_tqdm=False)]
    assert [output.finish_reason for output in outputs] == ["error" if i == HUNGRY else "length" for i in range(4)]
    assert [o.token_ids for i, o in enumerate(outputs) if i != HUNGRY] == [
        tokens for i, tokens in enumerate(expected) if i != HUNGRY
    ]
    assert str(error) in outputs[HUNGRY].error
    assert expected == [output.outputs[0].token_ids for output in llm.generate(PROMPTS, sampling, use_tqdm=False)]
