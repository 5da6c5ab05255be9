"""A small run of `same_bits.py`: the real model under random schedules, each format of weights and of KV."""

from __future__ import annotations

import pytest

from inflight.native import NativeUnavailable, isa

try:
    QUICK = isa().name != "portable"  # whose matrix products take too long for the real model
except NativeUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

from inflight.hub.resolve import resolve
from native.same_bits import Hashes, Machine, alone, random_schedule


@pytest.mark.skipif(not QUICK, reason="the real model takes too long in portable code")
@pytest.mark.parametrize(
    ("quantization", "kv_cache_dtype"), [("int8", "bfloat16"), ("q4", "int8"), ("int8", "float32"), ("int8", "int4")]
)
def test_logits_have_the_same_bits_under_any_schedule(quantization: str, kv_cache_dtype: str) -> None:
    machine = Machine.load(resolve(None).path, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    vocab_size = machine.executors[0].model_config.vocab_size
    references = alone(machine, vocab_size)
    outcomes = [random_schedule(machine, references, vocab_size, seed) for seed in range(8)]
    assert any(outcome.num_preemptions for outcome in outcomes)
    assert any(outcome.num_split_prompts for outcome in outcomes)
    assert any(outcome.num_aborts for outcome in outcomes)
    if quantization == "int8" and kv_cache_dtype == "bfloat16":
        other = flipped(references)
        with pytest.raises(AssertionError, match="has other bits than alone"):
            random_schedule(machine, other, vocab_size, 0)


def flipped(references: list[Hashes]) -> list[Hashes]:
    """What a comparison must not accept: every hash is another one."""
    return [{key: found[::-1] for key, found in hashes.items()} for hashes in references]
