"""What continuous batching promises, in examples small enough to follow by hand."""

from __future__ import annotations

import pytest

from fakes import PaperExecutor
from inflight.core.errors import InvariantViolation, Reason, Rejected
from inflight.core.output import FinishReason, Idle
from inflight.core.request import Request, SamplingParams
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler


def request(request_id, num_prompt=2, max_tokens=4, **options):
    priority = options.pop("priority", 0)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options)
    return Request(request_id=request_id, prompt_token_ids=(0,) * num_prompt, sampling=sampling, priority=priority)


class Engine:
    """A scheduler and a PaperExecutor, one call a step."""

    def __init__(self, num_blocks=64, block_size=4, **config):
        defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64}
        self.scheduler = ContinuousScheduler(ContinuousConfig(**(defaults | config)), num_blocks, block_size)
        self.executor = PaperExecutor(num_blocks, block_size)
        self.now_s = 0.0

    def add(self, *requests):
        for one in requests:
            self.scheduler.add(one, self.now_s)

    def step(self):
        """The rows that ran, as {request id: tokens}, and why sequences ended, as {request id: reason}."""
        self.now_s += 1.0
        output = self.scheduler.schedule("main", self.now_s)
        if isinstance(output, Idle):
            return {}, {}
        events = self.scheduler.update(output, self.executor.execute(output), {}, self.now_s)
        rows = {row.seq_id[0]: len(row.token_ids) for row in output.scheduled}
        return rows, {event.seq_id[0]: event.finish_reason for event in events if event.finish_reason}


def test_a_finished_row_is_replaced_in_the_next_step():
    engine = Engine(max_num_seqs=2)
    engine.add(request("short", max_tokens=2), request("long", max_tokens=6), request("next", max_tokens=1))
    assert engine.step() == ({"short": 2, "long": 2}, {})
    assert engine.step() == ({"short": 1, "long": 1}, {"short": FinishReason.LENGTH})
    assert engine.step() == ({"long": 1, "next": 2}, {"next": FinishReason.LENGTH})


def test_a_prompt_of_p_tokens_runs_in_p_over_chunk_steps_beside_decoding_rows():
    engine = Engine(max_num_batched_tokens=8, max_model_len=64)
    engine.add(request("decoding", max_tokens=20))
    engine.step()
    engine.add(request("prompt", num_prompt=17, max_tokens=1))
    steps = [engine.step()[0] for _ in range(3)]
    assert steps == [{"decoding": 1, "prompt": 7}, {"decoding": 1, "prompt": 7}, {"decoding": 1, "prompt": 3}]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole():
    engine = Engine(enable_chunked_prefill=False, max_num_batched_tokens=64, enable_prefix_caching=False)
    engine.add(request("one", num_prompt=40, max_tokens=2), request("two", num_prompt=30, max_tokens=1))
    assert engine.step()[0] == {"one": 40}
    assert engine.step()[0] == {"one": 1, "two": 30}


def test_a_prompt_that_ends_with_its_first_token_leaves_without_a_decode_step():
    engine = Engine()
    engine.add(request("one", max_tokens=1))
    assert engine.step() == ({"one": 2}, {"one": FinishReason.LENGTH})
    assert engine.step() == ({}, {})


def test_a_huge_max_tokens_does_not_block_others():
    engine = Engine(num_blocks=16, block_size=4, max_model_len=64)
    engine.add(request("greedy", max_tokens=62), request("modest", max_tokens=2))
    assert engine.step()[0] == {"greedy": 2, "modest": 2}


def test_absent_max_tokens_means_up_to_the_limit():
    engine = Engine(max_model_len=10)
    engine.add(request("one", num_prompt=3, max_tokens=None))
    reasons = [engine.step()[1] for _ in range(7)]
    assert reasons == [{}] * 6 + [{"one": FinishReason.LENGTH}]


@pytest.mark.parametrize(("num_prompt", "max_tokens", "param"), [(60, 5, "max_tokens"), (64, None, "prompt")])
def test_what_can_never_fit_is_refused_with_both_numbers(num_prompt, max_tokens, param):
    engine = Engine(max_model_len=64)
    with pytest.raises(Rejected, match=rf"{num_prompt} tokens.*64") as caught:
        engine.add(request("one", num_prompt=num_prompt, max_tokens=max_tokens))
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_LENGTH, param)
    assert engine.scheduler.stats().rejected == 1


def test_a_full_queue_and_an_id_in_use_are_refused():
    engine = Engine(max_num_waiting_seqs=2)
    engine.add(request("one"), request("two"))
    with pytest.raises(Rejected) as caught:
        engine.add(request("three"))
    assert caught.value.reason is Reason.QUEUE_FULL
    assert caught.value.retry_after_s
    engine.step()
    with pytest.raises(Rejected, match="in use"):
        engine.add(request("one"))


def test_lower_priority_numbers_are_served_first_and_waiting_ages():
    engine = Engine(max_num_seqs=1, scheduling_policy="priority", priority_ageing_s=10.0)
    engine.add(request("running", max_tokens=3))
    engine.step()
    engine.add(request("low", priority=1, max_tokens=1))
    engine.now_s += 5.0
    engine.add(request("high", priority=0, max_tokens=1))
    engine.now_s += 6.0  # "low" has waited for more than ageing_s longer than this one: it has caught up
    engine.add(request("high, but late", priority=0, max_tokens=1))
    order = [next(iter(engine.step()[0])) for _ in range(5)]
    assert order == ["running", "running", "high", "low", "high, but late"]


def test_memory_is_taken_from_the_tail_of_the_order():
    engine = Engine(num_blocks=4, block_size=2, max_model_len=8, max_num_seqs=2)
    engine.add(request("first", num_prompt=1, max_tokens=7), request("second", num_prompt=1, max_tokens=7))
    ends = {}
    for _ in range(30):
        ends |= engine.step()[1]
    assert list(ends) == ["first", "second"]
    moves = [(move.seq_id[0], str(move.after)) for move in engine.scheduler.transitions()]
    assert ("second", "preempted") in moves
    assert ("first", "preempted") not in moves


def test_a_step_must_be_answered_before_the_next():
    engine = Engine()
    engine.add(request("one"))
    output = engine.scheduler.schedule("main", 0.0)
    with pytest.raises(InvariantViolation, match="in flight"):
        engine.scheduler.schedule("main", 0.0)
    assert isinstance(output.num_tokens, int)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": 2.5}, "whole number"),
        ({"max_num_seqs": None}, "whole number"),
        ({"max_model_len": None}, "decided"),
        ({"max_num_seqs": 32, "max_num_batched_tokens": 16}, "every running sequence"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 63}, "one step"),
        ({"scheduling_policy": "lifo"}, "lifo"),
        ({"priority_ageing_s": float("nan")}, "priority_ageing_s"),
        ({"max_preemptions": -1}, "max_preemptions"),
        ({"max_num_waiting_seqs": 0}, "max_num_waiting_seqs"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be true or false"),
        ({"watermark_high": True}, "watermark_high must be a number"),
        ({"watermark_low": "a"}, "watermark_low must be a number"),
        ({"watermark_low": 0.95}, "the low one not above the high one"),
        ({"watermark_high": float("nan")}, "watermark_high"),
        ({"kv_reserve_blocks": -1}, "kv_reserve_blocks"),
        ({"prefix_cache": "tree"}, "prefix_cache must be one of"),
        ({"max_model_len": 257}, "256"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Engine(**wrong)


def test_more_choices_than_may_ever_wait_are_not_told_to_come_again():
    engine = Engine(max_num_waiting_seqs=2)
    with pytest.raises(Rejected, match="n is 3") as caught:
        engine.add(request("one", n=3))
    assert (caught.value.reason, caught.value.retry_after_s) == (Reason.INVALID, None)
