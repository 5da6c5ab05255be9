"""In every family, padded and ragged, in pages and in pieces: the bits that each request has alone. Native kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from inflight.native import kernels

if kernels is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from torch_worlds import VOCAB_SIZE, make_llama

from inflight.core.output import ScheduledSequence, SchedulerOutput
from inflight.core.request import Request, SamplingParams, SeqId, TokenId
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from inflight.runtime.native_forward import NativeForward
from inflight.runtime.rectangle import rows_of
from inflight.runtime.runner import ModelExecutor
from native.in_families import Outcome, Outputs, alone, configs, logprobs_are_finite, run

SHAPE: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 100, "head_dim": 64, "initializer_range": 0.1}
MAX_MODEL_LEN, NUM_SEATS = 96, 4
CONFIGS = configs(NUM_SEATS, MAX_MODEL_LEN)


def requests(seed: int) -> list[Request]:
    """Fourteen requests that arrive within a second or so, greedy and drawn, some of two choices."""
    draw = random.Random(seed)
    made, now_s = [], 0.0
    for index in range(14):
        now_s += draw.expovariate(20.0)
        num_prompt = draw.choice((1, 2, 15, 16, 17, 33, 60))
        sampling = SamplingParams(
            n=draw.choice((1, 1, 1, 2)),
            temperature=draw.choice((0.0, 0.8)),
            seed=index,
            logprobs=5,
            max_tokens=draw.choice((1, 2, 9, 30)),
        )
        prompt = tuple(draw.randrange(2, VOCAB_SIZE) for _ in range(num_prompt))
        made.append(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=sampling,
                eos_token_ids=(1,),
                arrival_s=now_s,
            )
        )
    return made


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelExecutor:
    folder = tmp_path_factory.mktemp("padded")
    make_llama(folder, **SHAPE)
    config = RuntimeConfig(
        num_threads=1, num_gpu_blocks_override=64, block_size=16, quantization="int8", kv_cache_dtype=request.param
    )
    executor = load_executor(folder, config)
    assert isinstance(executor._forward, NativeForward)
    return executor


@pytest.fixture(scope="module")
def references(executor: ModelExecutor) -> list[Outputs]:
    return [alone(executor, MAX_MODEL_LEN, requests(seed)) for seed in range(3)]


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_and_logprobs_are_those_of_each_request_alone(
    executor: ModelExecutor, references: list[Outputs], name: str
) -> None:
    for seed, expected in enumerate(references):
        outcome = run(executor, CONFIGS[name], requests(seed))
        assert outcome.outputs == expected
        assert logprobs_are_finite(expected)
        assert outcome.num_shared_steps > 10
        check_waste(name, outcome)


def check_waste(name: str, outcome: Outcome) -> None:
    """Only rectangles hold pads and dead rows, and these do; whoever is alone in the batch wastes nothing."""
    waste = (outcome.slots.padding, outcome.slots.straggler)
    if "padded" in name:
        assert min(waste) > 0
    else:
        assert waste == (0, 0)


def test_a_position_that_is_off_by_one_would_be_found(
    executor: ModelExecutor, references: list[Outputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rectangle whose prompts begin at position 1, as if one pad counted."""

    def shifted(output: SchedulerOutput, pad_token_id: Callable[[SeqId], TokenId]) -> tuple[ScheduledSequence, ...]:
        return tuple(
            row._replace(start=1, block_table=(*row.block_table, *output.scratch_table))
            if row in output.scheduled and 1 < len(row.token_ids) < (output.padded_to or 0)
            else row
            for row in rows_of(output, pad_token_id)
        )

    monkeypatch.setattr("inflight.runtime.runner.rows_of", shifted)
    assert run(executor, CONFIGS["static padded paged"], requests(0)).outputs != references[0]
