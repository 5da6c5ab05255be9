"""A padded step computes all of its rectangle, and no bit of a real row can tell: logits, KV, positions, in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch_worlds import VOCAB_SIZE, seq

from inflight.core.errors import StepFailed
from inflight.core.output import DeadRow, Idle, NewSequence, ScheduledSequence, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.runtime import rectangle
from inflight.runtime.batch import make_batch
from inflight.runtime.forward import StepLogits
from inflight.runtime.kv.dense import DenseKV
from inflight.runtime.runner import ModelExecutor
from inflight.runtime.torch_forward import TorchForward
from inflight.schedulers.config import SchedulerConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler

LENGTHS = {"one": (1, 3), "seven": (7, 9), "twenty": (20, 1), "long": (61, 5)}  # prompt, new tokens
REQUESTS = [
    Request(
        request_id=name,
        prompt_token_ids=tuple(np.random.default_rng(num_prompt).integers(2, VOCAB_SIZE, size=num_prompt).tolist()),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_new, logprobs=20, ignore_eos=True),
        eos_token_ids=(1,),
    )
    for name, (num_prompt, num_new) in LENGTHS.items()
]
PADDED = StaticConfig(batch_size=len(REQUESTS), max_model_len=100)
RAGGED = StaticConfig(batch_size=len(REQUESTS), max_model_len=100, padding=False)
Bits = dict[tuple[SeqId, int], tuple[bytes, bytes]]  # after so many tokens: of the logits, of all the KV


class Spy:
    """A forward pass that keeps the bits of every real row: its logits, and its KV in all layers."""

    def __init__(self, forward: TorchForward) -> None:
        self.forward = forward
        self.bits: Bits = {}
        self.real: tuple[ScheduledSequence, ...] = ()
        self.capacity, self.num_threads = forward.capacity, forward.num_threads

    def run(self, scheduled: tuple[ScheduledSequence, ...]) -> StepLogits:
        logits = self.forward.run(scheduled)
        for values, row in zip(logits.values, self.real, strict=False):
            end = row.start + len(row.token_ids)
            self.bits[row.seq_id, end] = (values.numpy().tobytes(), kv_bits(self.forward._kv, row, end))
        return logits

    def operations_s(self) -> dict[str, float]:
        return self.forward.operations_s()


def kv_bits(kv: Any, row: ScheduledSequence, end: int) -> bytes:
    assert isinstance(kv, DenseKV)
    slots = torch.tensor([row.block_table[i // kv.block_size] * kv.block_size + i % kv.block_size for i in range(end)])
    both = [side for layer in range(kv._k.shape[0]) for side in kv.gather(layer, slots)]
    return b"".join(side.numpy().tobytes() for side in both)


def bits_of(executor: ModelExecutor, config: SchedulerConfig, requests: list[Request]) -> Bits:
    """Run requests to their ends. Raises ``AssertionError`` if a step computed other than it was told to."""
    forward = executor._forward
    assert isinstance(forward, TorchForward)
    executor._forward = spy = Spy(forward)  # type: ignore[assignment]
    try:
        scheduler = make_scheduler(config, executor.capacity.num_blocks, executor.capacity.block_size)
        for request in requests:
            scheduler.add(request, 0.0)
        scheduler.flush(0.0)
        while not isinstance(output := scheduler.schedule("main", 0.0), Idle):
            spy.real = output.scheduled
            result = executor.execute(output)
            assert isinstance(result, StepResult)
            assert result.num_computed_tokens == output.num_computed_tokens
            scheduler.update(output, result, {}, 0.0)
    finally:
        executor._forward = forward
    return spy.bits


def alone(executor: ModelExecutor) -> Bits:
    return {key: bits for request in REQUESTS for key, bits in bits_of(executor, RAGGED, [request]).items()}


@pytest.fixture(scope="module")
def references(tiny: ModelExecutor) -> Bits:
    bits = alone(tiny)
    assert len(bits) == sum(num_new for _, num_new in LENGTHS.values())
    return bits


def test_logits_and_kv_of_every_row_have_the_bits_that_they_have_alone(tiny: ModelExecutor, references: Bits) -> None:
    assert bits_of(tiny, PADDED, REQUESTS) == references
    assert bits_of(tiny, RAGGED, REQUESTS) == references


@pytest.mark.parametrize("pad_token_id", [0, 1, 2, VOCAB_SIZE - 1])
def test_what_the_pads_are_changes_no_bit(
    tiny: ModelExecutor, references: Bits, pad_token_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "_pad_token_id", lambda seq_id: pad_token_id)
    assert bits_of(tiny, PADDED, REQUESTS) == references


def step(tokens: dict[str, list[int]], dead: int = 0, all_logits: bool = False) -> SchedulerOutput:
    """One padded prefill in blocks of 4; scratch is the blocks from 200."""
    rows = tuple(
        ScheduledSequence(
            seq(name),
            tuple(ids),
            0,
            tuple(range(number * 20, number * 20 + -(-len(ids) // 4))),
            len(ids) if all_logits else 1,
        )
        for number, (name, ids) in enumerate(tokens.items())
    )
    return SchedulerOutput(
        "main",
        0,
        rows,
        padded_to=max(map(len, tokens.values())),
        dead=tuple(DeadRow(seq(f"dead {n}"), 3 + n) for n in range(dead)),
        scratch_table=tuple(range(200, 230)),
    )


PROMPTS = {"short": [5, 6, 7], "long": list(range(10, 23)), "middle": [30, 31, 32, 33, 34]}


def test_real_tokens_have_the_positions_from_0_and_pads_stand_on_their_left() -> None:
    output = step(PROMPTS, dead=2)
    rows = rectangle.rows_of(output, lambda seq_id: 96)
    batch = make_batch(rows, block_size=4, device=torch.device("cpu"))
    assert len(batch.token_ids) == output.num_computed_tokens == 13 * 5
    lines = batch.token_ids.reshape(5, 13).tolist()
    positions = batch.positions.reshape(5, 13).tolist()
    for line, places, prompt in zip(lines, positions, PROMPTS.values(), strict=False):
        num_pads = 13 - len(prompt)
        assert line == [96] * num_pads + prompt
        assert places[num_pads:] == list(range(len(prompt)))
    assert lines[3:] == [[96] * 13] * 2
    assert positions[3:] == [list(range(3, 16)), list(range(4, 17))]
    own = {slot for row in output.scheduled for block in row.block_table for slot in range(block * 4, block * 4 + 4)}
    written = batch.slots.reshape(5, 13).tolist()
    for line, prompt in zip(written, PROMPTS.values(), strict=False):
        assert own.isdisjoint(line[: 13 - len(prompt)])
        assert own.issuperset(line[13 - len(prompt) :])
    assert all(own.isdisjoint(line) for line in written[3:])
    # One row of logits each, at its last token; those of the dead come last, so that they can be dropped.
    assert batch.logit_rows.tolist() == [end - 1 for end in accumulate([13] * 5)]


def test_no_row_sees_a_later_token_or_another_row(tiny: ModelExecutor) -> None:
    """Change one token: every position of its row from there on changes, and nothing else does."""
    forward = tiny._forward
    assert forward is not None

    def logits(tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        rows = rectangle.rows_of(step(tokens, dead=1, all_logits=True), lambda seq_id: 1)
        values = forward.run(rows).values.clone()
        lengths = [len(ids) for ids in tokens.values()]
        return dict(zip(tokens, values[: sum(lengths)].split(lengths), strict=True))

    before = logits(PROMPTS)
    for changed, place in (("short", 0), ("short", 2), ("long", 7), ("middle", 4)):
        tokens = {name: list(ids) for name, ids in PROMPTS.items()}
        tokens[changed][place] = 90
        after = logits(tokens)
        for name in PROMPTS:
            same = [bool(torch.equal(x, y)) for x, y in zip(before[name], after[name], strict=True)]
            expected_same = place if name == changed else len(PROMPTS[name])
            assert same == [True] * expected_same + [False] * (len(PROMPTS[name]) - expected_same)


def test_dead_rows_and_pads_need_no_sequence_that_the_executor_knows(tiny: ModelExecutor) -> None:
    output = step({"only": [5, 6]}, dead=2)
    new = NewSequence(seq("only"), (5, 6), SamplingParams(max_tokens=1), (1,))
    result = tiny.execute(replace(output, new=(new,), scratch_table=(200, 201)))
    assert [row.seq_id for row in result.sampled] == [seq("only")]
    assert result.num_computed_tokens == 6
    tiny.execute(SchedulerOutput("main", 1, (), finished=(seq("only"),)))


MUTATIONS = {
    "one pad too few": ("width - len(row.token_ids)", "width - len(row.token_ids) - 1"),
    "one pad too many": ("width - len(row.token_ids)", "width - len(row.token_ids) + 1"),
    "pads that are seen": ("        rows.append(row)\n", "        rows.append(row._replace(start=num_pads and 1))\n"),
    "dead rows in a block of a row that runs": (
        "dead.start, output.scratch_table, num_logits=1",
        "0, output.scheduled[0].block_table, num_logits=1",
    ),
    "logits of a pad": ("output.scratch_table, num_logits=0", "output.scratch_table, num_logits=1"),
    "dead rows first": ("        rows.append(ScheduledSequence(dead", "        rows.insert(0, ScheduledSequence(dead"),
    "a dead row that is not computed": ("for dead in output.dead:", "for dead in output.dead[1:]:"),
}


def mutated(before: str, after: str) -> Callable[..., Any]:
    source = inspect.getsource(rectangle)
    assert source.count(before) == 1
    names: dict[str, Any] = {"__name__": "mutated"}
    exec(source.replace(before, after), names)
    return names["rows_of"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_in_the_rectangle_would_be_found(
    tiny: ModelExecutor, references: Bits, mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = MUTATIONS[mutation]
    monkeypatch.setattr("inflight.runtime.runner.rows_of", mutated(before, before))
    assert bits_of(tiny, PADDED, REQUESTS) == references
    monkeypatch.setattr("inflight.runtime.runner.rows_of", mutated(before, after))
    with pytest.raises((AssertionError, StepFailed)):
        assert bits_of(tiny, PADDED, REQUESTS) == references
