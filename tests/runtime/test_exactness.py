"""The real model's tokens against transformers', in settings that batch, chunk and preempt differently."""

from __future__ import annotations

import pytest

from exactness import TIE, Setting, differences, generate, reference
from inflight.core.request import SamplingParams
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor

NUM_NEW = 12
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived a girl who collected",
    "Water boils at a lower temperature on a mountain because",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Ms. Alvarez,\n\nthank you for your letter of 3 May. We have looked into the matter of the missing parcel and",
)
SETTINGS = (Setting(1, 256), Setting(3, 16), Setting(6, 2048), Setting(6, 64, num_blocks=11))


@pytest.fixture(scope="module")
def executor(model_files):
    executor = load_executor(
        model_files.path, RuntimeConfig(dtype="float32", num_threads=1, block_size=4, num_gpu_blocks_override=512)
    )
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer.encode(text) for text in TEXTS]


def test_greedy_tokens_are_those_of_transformers(executor, tokenizer, model_files, prompts):
    greedy = [SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)] * len(prompts)
    references = reference(model_files.path, prompts, NUM_NEW)
    preemptions = 0
    for setting in SETTINGS:
        tokens, num_preemptions = generate(executor, tokenizer, setting, prompts, greedy)
        assert [found for found in differences(tokens, references) if found[2] > TIE] == [], setting
        preemptions += num_preemptions
    assert preemptions >= 2


def test_seeded_tokens_are_the_same_in_every_setting(executor, tokenizer, prompts):
    seeded = [SamplingParams(temperature=0.8, seed=7 + i, max_tokens=NUM_NEW, ignore_eos=True) for i in range(6)]
    first, *others = [generate(executor, tokenizer, setting, prompts, seeded)[0] for setting in SETTINGS]
    assert all(other == first for other in others)
    assert first[0] != generate(executor, tokenizer, SETTINGS[0], prompts[:1], seeded[1:2])[0][0]
