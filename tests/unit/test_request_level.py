"""What static and dynamic batching promise, in examples small enough to follow by hand."""

from __future__ import annotations

import pytest

from fakes import Failure, PaperExecutor
from inflight.core.errors import InvariantViolation, Reason, Rejected, StepFailed
from inflight.core.output import FinishReason, Idle
from inflight.core.request import Request, SamplingParams
from inflight.metrics.ledger import Ledger
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, StaticConfig
from inflight.schedulers.registry import config_from_log, make_scheduler


def request(request_id, num_prompt=2, max_tokens=4, arrival_s=0.0, priority=0, **options):
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options)
    return Request(
        request_id=request_id,
        prompt_token_ids=(0,) * num_prompt,
        sampling=sampling,
        priority=priority,
        arrival_s=arrival_s,
    )


def static(batch_size=4, max_model_len=64, **config):
    return StaticConfig(batch_size=batch_size, max_model_len=max_model_len, **config)


def dynamic(max_batch_size=4, max_model_len=64, **config):
    return DynamicConfig(max_batch_size=max_batch_size, max_model_len=max_model_len, **config)


class Engine:
    """A scheduler and a PaperExecutor, one call a step; a step takes no time."""

    def __init__(self, config, num_blocks=128, block_size=4, failure=lambda output: None):
        self.scheduler = make_scheduler(config, num_blocks, block_size)
        self.executor = PaperExecutor(num_blocks, block_size, failure=failure)
        self.output = None

    def add(self, *requests):
        for one in requests:
            self.scheduler.add(one, one.arrival_s)

    def begin(self, now_s=0.0):
        self.output = self.scheduler.schedule("main", now_s)
        return self.output

    def end(self, now_s=0.0):
        """What callers get from the step that was begun: {request id: (number of tokens, why it ended)}."""
        try:
            result = self.executor.execute(self.output)
        except StepFailed as failure:
            result = failure
        events = self.scheduler.update(self.output, result, {}, now_s)
        self.scheduler.check()
        return {event.seq_id[0]: (len(event.tokens), event.finish_reason) for event in events}

    def step(self, now_s=0.0):
        """The rows that ran, as {request id: tokens}, and what callers got."""
        output = self.begin(now_s)
        if isinstance(output, Idle):
            return {}, {}
        return ran(output), self.end(now_s)

    def leaving(self, now_s):
        """The batch that leaves now, which is then run to its end."""
        rows, told = self.step(now_s)
        while rows and not told:
            _, told = self.step(now_s)
        return list(rows)


def ran(output):
    return {row.seq_id[0]: len(row.token_ids) for row in output.scheduled}


LENGTH = FinishReason.LENGTH


def test_seven_rows_of_50_tokens_wait_for_one_of_250():
    """249 decode steps of 8 seats are 1,992 slots, and in 7 x 200 of them a row is computed that has ended."""
    engine, ledger = Engine(static(8, 256), num_blocks=1024), Ledger(8)
    engine.add(*[request(f"short {i}", max_tokens=50) for i in range(7)], request("long", max_tokens=250))
    decoding = []
    told = {}
    while not told:
        output = engine.begin()
        decoding += [output] if output.step else []
        told = engine.end()
        ledger.on_update(output, failed=False, events=())
    assert len(decoding) == 249
    assert sum(output.num_computed_tokens for output in decoding) == 1992
    assert sum(len(output.dead) for output in decoding) == 1400
    assert (ledger.slots.straggler, ledger.slots.dead, ledger.slots.padding) == (1400, 1400, 0)
    assert told == {f"short {i}": (50, LENGTH) for i in range(7)} | {"long": (250, LENGTH)}


def test_without_padding_the_same_batch_computes_nobody_who_has_ended():
    engine = Engine(static(2, padding=False))
    engine.add(request("short", num_prompt=1, max_tokens=1), request("long", num_prompt=3, max_tokens=3))
    assert engine.step() == ({"short": 1, "long": 3}, {})
    assert engine.step() == ({"long": 1}, {})
    assert engine.step() == ({"long": 1}, {"short": (1, LENGTH), "long": (3, LENGTH)})
    assert (engine.output.dead, engine.output.padded_to) == ((), None)


def test_prompts_are_filled_up_to_the_longest_and_dead_rows_go_on():
    engine = Engine(static(2))
    engine.add(request("short", num_prompt=1, max_tokens=1), request("long", num_prompt=7, max_tokens=3))
    first = engine.begin()
    assert (ran(first), first.padded_to, first.dead) == ({"short": 1, "long": 7}, 7, ())
    assert (first.num_tokens, first.num_computed_tokens) == (8, 14)
    assert first.scratch_table == (112, 113)  # 6 pads in blocks of 4, behind the 112 blocks of the rows
    engine.end()
    second = engine.begin()
    assert (second.padded_to, second.dead) == (1, ((("short", 0), 1),))
    engine.end()
    assert engine.begin().dead == ((("short", 0), 2),)


def test_rows_that_end_with_their_first_token_need_no_decode_step():
    engine = Engine(static(2))
    engine.add(request("one", max_tokens=1), request("two", max_tokens=1))
    assert engine.step() == ({"one": 2, "two": 2}, {"one": (1, LENGTH), "two": (1, LENGTH)})
    assert engine.step() == ({}, {})


def test_one_less_than_a_batch_waits_for_ever_unless_somebody_says_that_nobody_comes():
    engine = Engine(static(4))
    engine.add(request("one"), request("two"), request("three"))
    assert engine.begin(now_s=1e6) == Idle(wake_at_s=None)
    stats = engine.scheduler.stats()
    assert (stats.num_waiting_seqs, stats.num_running_seqs, stats.live) == (3, 0, 3)
    engine.scheduler.flush(1e6)
    assert engine.leaving(1e6) == ["one", "two", "three"]


def test_a_flush_is_not_for_those_who_come_later():
    engine = Engine(static(4))
    engine.scheduler.flush(0.0)
    engine.add(request("later"))
    assert engine.begin(now_s=1.0) == Idle()


def test_a_fill_timeout_counts_from_the_oldest():
    engine = Engine(static(4, fill_timeout_ms=500))
    engine.add(request("one", arrival_s=1.0), request("two", arrival_s=1.25))
    assert engine.begin(1.25) == Idle(wake_at_s=1.5)
    assert engine.leaving(1.5) == ["one", "two"]


def test_a_window_does_not_open_when_the_engine_becomes_free():
    """Who came while a batch ran has waited already."""
    engine = Engine(dynamic(max_wait_ms=500))
    engine.add(request("running", arrival_s=0.0))
    engine.begin(0.5)
    engine.add(request("one", arrival_s=0.75))
    for now_s in (1.0, 1.25, 1.5):
        engine.end(now_s)
        engine.begin(now_s)
    assert engine.end(2.0) == {"running": (4, LENGTH)}
    assert ran(engine.begin(2.0)) == {"one": 2}


def test_a_full_batch_does_not_wait_for_its_window():
    engine = Engine(dynamic(2, max_wait_ms=500))
    engine.add(request("one", arrival_s=1.0))
    assert engine.begin(1.0) == Idle(wake_at_s=1.5)
    engine.add(request("two", arrival_s=1.25), request("three", arrival_s=1.25))
    assert engine.leaving(1.25) == ["one", "two"]
    assert engine.begin(1.25) == Idle(wake_at_s=1.75)


def test_a_preferred_size_leaves_at_once_and_others_at_the_window():
    engine = Engine(dynamic(8, max_wait_ms=500, preferred_batch_size=(4, 2)))
    engine.add(*[request(str(i)) for i in range(7)])
    assert engine.leaving(0.0) == ["0", "1", "2", "3"]
    assert engine.leaving(0.0) == ["4", "5"]
    assert engine.begin(0.25) == Idle(wake_at_s=0.5)
    assert engine.leaving(0.5) == ["6"]


def test_the_token_budget_counts_the_rectangle_and_what_will_be_generated():
    """2 x 10 + (5 + 5) = 30 tokens fit a budget of 30; a third row of any length does not."""
    engine = Engine(dynamic(8, max_tokens_in_batch=30, max_wait_ms=10_000))
    engine.add(request("one", num_prompt=1, max_tokens=5), request("two", num_prompt=10, max_tokens=5))
    assert isinstance(engine.begin(), Idle)
    engine.add(request("three", num_prompt=1, max_tokens=1))
    assert engine.leaving(0.0) == ["one", "two"]


def test_a_request_above_the_token_budget_is_refused_with_both_numbers():
    engine = Engine(dynamic(max_tokens_in_batch=30))
    with pytest.raises(Rejected, match=r"28 tokens and 3 new tokens.*max_tokens_in_batch, which is 30") as caught:
        engine.add(request("one", num_prompt=28, max_tokens=3))
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_LENGTH, "max_tokens")


def test_a_prompt_above_max_model_len_is_refused_with_both_numbers():
    engine = Engine(static(max_model_len=64))
    with pytest.raises(Rejected, match=r"64 tokens.*max_model_len, which is 64") as caught:
        engine.add(request("one", num_prompt=64, max_tokens=None))
    assert (caught.value.reason, caught.value.param) == (Reason.CONTEXT_LENGTH, "prompt")
    assert engine.scheduler.stats().rejected == 1


def test_only_prompts_of_one_bin_share_a_batch():
    engine = Engine(dynamic(2, max_wait_ms=0, length_bins=(4, 16)))
    lengths = {"short": 4, "long": 17, "middle": 5, "short too": 1, "longer": 30}
    engine.add(*[request(name, num_prompt=length) for name, length in lengths.items()])
    assert engine.leaving(0.0) == ["short", "short too"]
    assert engine.leaving(0.0) == ["long", "longer"]
    assert engine.leaving(0.0) == ["middle"]


def test_lower_priority_numbers_leave_first_and_waiting_ages():
    engine = Engine(static(2, scheduling_policy="priority", priority_ageing_s=10.0))
    engine.add(request("low", priority=1, arrival_s=0.0), request("high", priority=0, arrival_s=5.0))
    engine.add(request("high, but late", priority=0, arrival_s=11.0))  # "low" has caught up
    assert engine.leaving(11.0) == ["high", "low"]


def test_the_oldest_opens_the_window_also_where_others_are_served_first():
    engine = Engine(dynamic(1, max_wait_ms=500, scheduling_policy="priority", preferred_batch_size=()))
    engine.add(request("low", priority=9, arrival_s=0.0), request("high", priority=0, arrival_s=0.25))
    assert engine.leaving(0.25) == ["high"]
    assert engine.leaving(0.25) == ["low"]


def test_a_batch_leaves_with_as_many_rows_as_memory_holds_to_their_ends():
    """Three blocks of 4 tokens hold one row of 12 tokens, or one of 8 and one of 4; the last token is never run."""
    engine = Engine(static(3, max_model_len=12, padding=False), num_blocks=3)
    engine.add(request("two", num_prompt=5, max_tokens=4), request("one", num_prompt=1, max_tokens=4))
    engine.add(request("next", num_prompt=1, max_tokens=1))
    assert engine.leaving(0.0) == ["two", "one"]
    assert isinstance(engine.begin(), Idle)


def test_an_aborted_row_keeps_its_seat_but_not_its_memory():
    engine = Engine(static(2))
    engine.add(request("stays", max_tokens=5), request("goes", max_tokens=5))
    engine.step()
    engine.scheduler.abort("goes", 0.0)
    assert engine.scheduler.stats().aborted == 1
    output = engine.begin()
    assert (ran(output), output.dead, output.finished) == ({"stays": 1}, ((("goes", 0), 2),), (("goes", 0),))


def test_the_last_that_runs_is_aborted_and_the_others_come_back_in_the_next_step():
    engine = Engine(static(2))
    engine.add(request("short", max_tokens=2), request("long", max_tokens=50))
    engine.step()
    assert engine.step() == ({"short": 1, "long": 1}, {})
    engine.scheduler.abort("long", 0.0)
    assert engine.scheduler.stats().aborted == 0
    assert engine.step() == ({"long": 1}, {"short": (2, LENGTH)})
    assert engine.scheduler.stats().aborted == 1


def test_a_row_aborted_after_it_ended_gets_nothing():
    engine = Engine(static(2))
    engine.add(request("short", max_tokens=1), request("long", max_tokens=2))
    engine.step()
    engine.scheduler.abort("short", 0.0)
    assert engine.step() == ({"long": 1}, {"long": (2, LENGTH)})


def test_a_row_that_failed_is_told_at_once_and_the_others_together():
    engine = Engine(static(2), failure=lambda output: Failure(row=0) if output.step == 1 else None)
    engine.add(request("fails", max_tokens=3), request("works", max_tokens=3))
    assert engine.step() == ({"fails": 2, "works": 2}, {})
    assert engine.step() == ({"fails": 1, "works": 1}, {"fails": (0, FinishReason.ERROR)})
    assert engine.step() == ({"works": 1}, {"works": (3, LENGTH)})


def test_after_a_step_that_failed_each_row_runs_alone():
    engine = Engine(static(2), failure=lambda output: Failure(after_rows=1) if output.step == 0 else None)
    engine.add(request("one", max_tokens=2), request("two", num_prompt=3, max_tokens=2))
    assert engine.step() == ({"one": 2, "two": 3}, {})
    assert engine.step() == ({"one": 2}, {})
    assert engine.output.padded_to is None
    assert engine.step() == ({"two": 3}, {})
    assert engine.step() == ({"one": 1, "two": 1}, {"one": (2, LENGTH), "two": (2, LENGTH)})


def highest_concurrency(config, num_blocks):
    """Rows in one step, at most, of thirty requests of 4 + 4 tokens."""
    engine = Engine(config, num_blocks=num_blocks)
    engine.add(*[request(str(i), num_prompt=4, max_tokens=5) for i in range(30)])
    engine.scheduler.flush(0.0)
    most = 0
    while not isinstance(output := engine.begin(), Idle):
        most = max(most, len(output.scheduled))
        engine.end()
    return most


@pytest.mark.parametrize(("allocator", "expected"), [("paged", 16), ("contiguous", 2)])
def test_paged_memory_holds_more_rows_than_pieces_of_the_longest(allocator, expected):
    """32 blocks of 4 tokens: rows of 8 tokens take 2 blocks, or a piece of 16."""
    common = {"max_model_len": 64, "kv_allocator": allocator}
    assert highest_concurrency(StaticConfig(batch_size=30, padding=False, **common), num_blocks=32) == expected
    limits = {"max_num_seqs": 30, "max_num_batched_tokens": 200, "max_preemptions": 0, **common}
    alone = ContinuousConfig(enable_prefix_caching=False, **limits)
    assert highest_concurrency(alone, num_blocks=32) == expected
    together = highest_concurrency(ContinuousConfig(**limits), num_blocks=32)  # all requests begin alike
    assert (together > expected) == (allocator == "paged")


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_memory_that_does_not_hold_the_longest_row_is_refused(padding, allocator):
    config = static(max_model_len=64, padding=padding, kv_allocator=allocator)
    enough = 32 if padding else 16  # pads and dead rows have as much again
    make_scheduler(config, enough, 4)
    with pytest.raises(ValueError, match=r"64 tokens, but the KV cache holds 60 " + (".*16 for padding" * padding)):
        make_scheduler(config, enough - 1, 4)


def test_a_step_must_be_answered_before_the_next_and_by_its_own_result():
    engine = Engine(static(1))
    engine.add(request("one"))
    output = engine.begin()
    with pytest.raises(InvariantViolation, match="in flight"):
        engine.begin()
    engine.end()
    with pytest.raises(InvariantViolation, match="not the one in flight"):
        engine.scheduler.update(output, StepFailed(""), {}, 0.0)


@pytest.mark.parametrize(
    ("family", "wrong", "says"),
    [
        (static, {"batch_size": 0}, "batch_size"),
        (static, {"batch_size": None}, "whole number"),
        (static, {"batch_size": True}, "whole number"),
        (static, {"batch_size": 1025}, r"max_num_waiting_seqs \(1024\).*fills from the queue"),
        (static, {"fill_timeout_ms": -1}, "fill_timeout_ms"),
        (static, {"fill_timeout_ms": float("nan")}, "fill_timeout_ms"),
        (static, {"max_model_len": None}, "decided"),
        (static, {"kv_allocator": "heap"}, "heap"),
        (dynamic, {"max_wait_ms": float("inf")}, "max_wait_ms"),
        (dynamic, {"max_batch_size": 2.5}, "max_batch_size"),
        (dynamic, {"max_tokens_in_batch": 0}, "max_tokens_in_batch"),
        (dynamic, {"preferred_batch_size": (2, 5)}, "must not exceed max_batch_size"),
        (dynamic, {"preferred_batch_size": (0,)}, "preferred_batch_size"),
        (dynamic, {"length_bins": (64, -1)}, "length_bins"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(family, wrong, says):
    with pytest.raises(ValueError, match=says):
        make_scheduler(family(**wrong), 128, 4)


def test_a_configuration_is_found_again_by_its_name():
    config = dynamic(preferred_batch_size=(4, 2))
    logged = {"max_batch_size": 4, "max_model_len": 64, "preferred_batch_size": [4, 2]}
    assert config_from_log("dynamic", logged) == config
    with pytest.raises(ValueError, match="there are: continuous, static, dynamic"):
        config_from_log("disaggregated", {})
    with pytest.raises(ValueError, match="another version"):
        config_from_log("static", {"max_batch_size": 4})
