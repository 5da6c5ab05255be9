"""Failures, memory and calibration: what the engine sees of the executor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_worlds import VOCAB_SIZE, Driver, greedy, knows, load, make_llama, seq

from inflight.core.errors import InvariantViolation, StepFailed
from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput, StepResult
from inflight.engine.executor import KVCapacity
from inflight.runtime import runner
from inflight.runtime.calibrate import BUDGET_S, LANE, NUM_DECODES, calibrate_num_batched_tokens
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.forward import StepLogits
from inflight.runtime.runner import ModelExecutor
from inflight.runtime.sampler import SamplerRow, sample
from inflight.runtime.torch_forward import TorchForward


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate")])
def test_a_failed_step_can_be_run_again(tiny: ModelExecutor, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    healthy = Driver(tiny)
    healthy.add(seq(), [5, 6, 7, 8], greedy())
    expected = healthy.finish(6)
    healthy.end()

    driver = Driver(tiny)
    driver.add(seq(), [5, 6, 7, 8], greedy())
    driver.finish(2)

    def fail(*_: Any) -> None:
        raise error

    computed = driver.computed[seq()]
    with monkeypatch.context() as patch:
        patch.setattr(tiny._forward, "run", fail)
        with pytest.raises(StepFailed, match=str(error).split(":")[0]):
            driver.run({seq(): 1})
    driver.computed[seq()] = computed
    assert driver.finish(6) == expected
    driver.preempt(seq())
    driver.sampled[seq()] = []
    del driver.tokens[seq()][4:]
    assert driver.finish(6) == expected
    driver.end()


def test_a_row_of_nan_fails_alone_and_leaves_nothing_in_its_blocks(tiny: ModelExecutor) -> None:
    prompt = [5, 6, 7, 8, 9]
    alone = Driver(tiny)
    alone.add(seq("good"), prompt, greedy())
    expected = alone.finish(4)[seq("good")]
    alone.end()

    driver = Driver(tiny)
    driver.add(seq("good"), prompt, greedy())
    driver.add(seq("bad"), prompt, greedy())
    driver.run({seq("good"): 5, seq("bad"): 5})
    assert isinstance(tiny._forward, TorchForward)
    kv = tiny._forward._kv
    poisoned = driver.tables[seq("bad")]
    for block in poisoned:
        slots = torch.arange(block * kv.block_size, (block + 1) * kv.block_size)
        nan = torch.full((kv.block_size, kv.num_kv_heads, kv.head_dim), torch.nan)
        with torch.inference_mode():
            for layer in range(tiny.model_config.num_hidden_layers):
                kv.write(layer, slots, nan, nan)
    result = driver.run({seq("good"): 1, seq("bad"): 1})
    assert [row.seq_id for row in result.sampled] == [seq("good")]
    assert [row.seq_id for row in result.failed] == [seq("bad")]
    del driver.tokens[seq("bad")], driver.sampled[seq("bad")]
    # The next owner of the poisoned blocks fills them only in part.
    driver.free += poisoned[::-1]
    driver.add(seq("heir"), prompt, greedy())
    tokens = driver.finish(4)
    assert tokens[seq("good")] == tokens[seq("heir")] == expected
    driver.end()
    tiny.execute(SchedulerOutput("main", 99, (), finished=(seq("bad"),)))


def test_only_rows_that_ask_get_a_token(tiny: ModelExecutor) -> None:
    driver = Driver(tiny)
    driver.add(seq(), list(range(2, 12)), greedy())
    assert driver.run({seq(): 9}).sampled == ()
    assert len(driver.run({seq(): 9}).sampled) == 1
    driver.end()
    empty = tiny.execute(SchedulerOutput("main", 7, ()))
    assert (empty.step, empty.sampled, empty.failed) == (7, (), ())


def test_what_no_scheduler_may_do_is_refused(tiny: ModelExecutor) -> None:
    unknown = ScheduledSequence(seq("nobody"), (3,), 0, (0,), 1)
    with pytest.raises(InvariantViolation):
        tiny.execute(SchedulerOutput("main", 0, (unknown,)))
    new = NewSequence(seq(), (3, 4), greedy(), ())
    for tokens, table in (((3, 4), ()), ((VOCAB_SIZE, 4), (0,)), ((-1, 4), (0,)), ((3, 4), (10**6,))):
        row = ScheduledSequence(seq(), tokens, 0, table, 1)
        with pytest.raises(StepFailed):
            tiny.execute(SchedulerOutput("main", 0, (row,), new=(new,)))
    tiny.execute(SchedulerOutput("main", 0, (), finished=(seq(),)))


def test_close_is_idempotent_and_final(tmp_path: Path) -> None:
    make_llama(tmp_path)
    executor = load(tmp_path)
    executor.close()
    executor.close()
    driver = Driver(executor)
    driver.add(seq(), [3], greedy())
    with pytest.raises(StepFailed, match="closed"):
        driver.run({seq(): 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float8"},
        {"kv_cache_dtype": "int3"},
        {"block_size": 0},
        {"num_threads": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": float("nan")},
        {"gpu_memory_utilization": 1.1},
        {"kv_cache_memory_bytes": 0},
        {"num_gpu_blocks_override": 0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RuntimeConfig(**settings)


class PricedExecutor:
    """A step takes what ``price_s(step's number, its tokens)`` says; a negative price is a step that fails."""

    def __init__(self, price_s: Callable[[int, int], float], capacity: KVCapacity) -> None:
        self.price_s, self.capacity = price_s, capacity
        self.live: set[Any] = set()
        self.steps: list[SchedulerOutput] = []
        self.durations_s: list[float] = []

    def execute(self, output: SchedulerOutput) -> StepResult:
        self.live = (self.live - set(output.finished)) | {new.seq_id for new in output.new}
        for row in output.scheduled:
            assert row.seq_id in self.live
            assert row.start + len(row.token_ids) <= len(row.block_table) * self.capacity.block_size
            assert max(row.block_table) < self.capacity.num_blocks
        duration_s = 0.0
        if output.scheduled:
            duration_s = self.price_s(len(self.steps), output.num_tokens)
            if duration_s < 0:
                raise StepFailed("no luck")
            self.steps.append(output)
            self.durations_s.append(duration_s)
        return StepResult(output.step, (), duration_s)

    def close(self) -> None:
        """Nothing to release."""


@pytest.mark.parametrize(
    ("base_s", "token_s", "capacity", "expected"),
    [
        (0.02, 0.0004, KVCapacity(1000, 16, 1), 192),  # (0.1 - 0.02) / 0.0004 = 200
        (0.0, 0.00001, KVCapacity(1000, 16, 1), 2048),  # fast: the upper bound
        (0.5, 0.0, KVCapacity(1000, 16, 1), 32),  # slow: the lower bound
        (0.0, 0.00001, KVCapacity(40, 4, 1), 128),  # no more than the pool can hold
        (0.0, 0.00001, KVCapacity(5, 4, 1), 32),  # nothing can be measured
        (0.0, 0.0005, KVCapacity(300, 1, 1), 192),  # blocks of one token
    ],
)
def test_calibration_finds_the_size_that_takes_the_time(
    base_s: float, token_s: float, capacity: KVCapacity, expected: int
) -> None:
    executor = PricedExecutor(lambda _, num_tokens: base_s + token_s * num_tokens, capacity)
    tokens, why = calibrate_num_batched_tokens(executor)
    assert tokens == expected
    assert str(tokens) in why
    assert executor.live == set()
    assert all(len(step.scheduled) == 1 + NUM_DECODES for step in executor.steps)


@settings(max_examples=100, deadline=None)
@given(
    durations_s=st.lists(st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 20.0)), min_size=1, max_size=8),
    num_blocks=st.integers(2, 300),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_calibration_under_a_busy_neighbour_ends_in_time(
    durations_s: list[float], num_blocks: int, block_size: int
) -> None:
    """Steps take anything; no step starts once the budget is spent, and the answer is a legal one."""
    executor = PricedExecutor(
        lambda step, _: durations_s[step % len(durations_s)], KVCapacity(num_blocks, block_size, 1)
    )
    tokens, _ = calibrate_num_batched_tokens(executor)
    assert tokens % 16 == 0
    assert 32 <= tokens <= max(32, min(2048, (num_blocks - 1) * block_size))
    assert sum(executor.durations_s[:-1]) < BUDGET_S
    assert executor.live == set()


def test_calibration_out_of_time_answers_with_what_it_knows() -> None:
    slow_start = PricedExecutor(lambda *_: 7.0, KVCapacity(1000, 16, 1))
    tokens, why = calibrate_num_batched_tokens(slow_start)
    assert tokens == 32
    assert "no time for more after 7.0 s" in why
    assert len(slow_start.steps) == 1
    for stalled_step, expected in ((4, 64), (5, 64), (6, 128)):  # two steps of each size, after the first of all
        stalled = PricedExecutor(lambda step, _, at=stalled_step: 9.0 if step == at else 0.01, KVCapacity(1000, 16, 1))
        assert calibrate_num_batched_tokens(stalled)[0] == expected
        assert len(stalled.steps) == stalled_step + 1


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_calibration_that_fails_ends_its_sequences(failing: int) -> None:
    executor = PricedExecutor(lambda step, _: -1.0 if step == failing else 0.01, KVCapacity(1000, 16, 1))
    with pytest.raises(StepFailed, match="no luck"):
        calibrate_num_batched_tokens(executor)
    assert executor.live == set()


def test_calibration_leaves_nothing_in_a_real_executor(tiny: ModelExecutor) -> None:
    tokens, _ = calibrate_num_batched_tokens(tiny)
    assert tokens % 16 == 0
    assert 32 <= tokens <= 2048
    assert not knows(tiny, (LANE, 0))


def test_num_threads_is_what_torch_uses(tmp_path: Path) -> None:
    make_llama(tmp_path)
    try:
        assert load(tmp_path, num_threads=2).num_threads == 2
        assert load(tmp_path, num_threads=1).num_threads == 1
    finally:
        torch.set_num_threads(1)


def test_the_sampler_reads_the_tokens_without_a_copy(tiny: ModelExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SamplerRow] = []

    def look(logits: StepLogits, rows: list[SamplerRow]) -> list[Any]:
        seen.extend(rows)
        return sample(logits, rows)

    monkeypatch.setattr(runner, "sample", look)
    new = NewSequence(seq(), (5, 6, 7), greedy(), ())
    several = ScheduledSequence(seq(), (5, 6, 7), 0, (0,), 2)  # a logit row in the midst of the tokens sees a part
    tiny.execute(SchedulerOutput("main", 0, (several,), new=(new,)))
    assert [row.token_ids for row in seen] == [[5, 6], [5, 6, 7]]
    assert seen[1].token_ids is tiny._states[seq()].token_ids
    tiny.execute(SchedulerOutput("main", 1, (), finished=(seq(),)))


@pytest.mark.parametrize(
    "name",
    ["block_size", "num_threads", "kv_cache_memory_bytes", "num_gpu_blocks_override", "gpu_memory_utilization"],
)
@pytest.mark.parametrize("value", [16.0, 1e9, True, "16"], ids=str)
def test_a_setting_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .* got {value!r}"):
        RuntimeConfig(**{name: value})


def test_a_device_is_a_name() -> None:
    with pytest.raises(ValueError, match="device must be a name, got 0"):
        RuntimeConfig(device=0)  # type: ignore[arg-type]
