"""Traces whose figures were computed by hand, next to the definitions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.errors import Reason, Rejected
from inflight.core.output import BlockCopy, FinishReason
from inflight.metrics.delta import MetricsDelta, Outcome
from metrics.trace import Trace

A, B = ("a", 0), ("b", 0)
STOP, LENGTH, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR


def test_one_request_from_arrival_to_end() -> None:
    trace = Trace()
    trace.add("a", at=1.0, num_prompt=6)
    trace.step(1.5, 1.75, [(A, 0, 4)], {})  # the first chunk of the prompt gives no token
    trace.step(1.75, 2.0, [(A, 4, 2)], {A: 1})
    trace.step(2.0, 2.125, [(A, 6, 1)], {A: 1})
    trace.step(2.125, 2.5, [(A, 7, 1)], {A: 1}, {A: LENGTH})
    delta = trace.collector.drain()

    assert delta.batch_rows == (1, 1, 1, 1)
    assert delta.batch_tokens == (4, 2, 1, 1)
    assert delta.first_tokens == (("a", 0.5, 0.5, 2.0),)
    assert delta.itl_s == (0.125, 0.375)
    assert (delta.num_prompt_tokens, delta.num_output_tokens) == (6, 3)
    (record,) = delta.ended
    assert record.outcome is Outcome.LENGTH
    assert (record.queue_s, record.ttft_s, record.e2e_s) == (0.5, 1.0, 1.5)
    assert record.tpot_s == ((record.e2e_s - record.ttft_s) / (3 - 1),) == (0.25,)
    assert record.max_itl_s == 0.375


def test_tpot_of_a_single_token_is_absent() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.step(1.0, 2.0, [(A, 0, 4)], {A: 1}, {A: STOP})
    delta = trace.collector.drain()
    assert delta.itl_s == ()
    assert delta.ended[0].tpot_s == ()
    assert delta.ended[0].max_itl_s is None
    assert delta.ended[0].ttft_s == delta.ended[0].e2e_s == 2.0


def test_a_gap_with_a_preemption_is_one_sample_and_is_labelled() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.add("b", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4), (B, 0, 4)], {A: 1, B: 1})
    trace.step(1.0, 1.5, [(A, 4, 1), (B, 4, 1)], {A: 1, B: 1})
    trace.step(1.5, 2.0, [(A, 5, 1)], {A: 1}, {A: STOP}, preempted=(B,))
    trace.step(2.0, 4.0, [(B, 0, 6)], {B: 1})  # computed again
    trace.step(4.0, 4.25, [(B, 6, 1)], {B: 1}, {B: STOP})
    delta = trace.collector.drain()
    assert delta.itl_s == (0.5, 0.5, 0.5, 0.25)
    assert delta.itl_preempted_s == (2.5,)  # from 1.5 to 4.0
    assert (delta.num_preemptions, delta.num_tokens_lost) == (1, 5)
    a, b = delta.ended
    assert (a.num_preemptions, a.num_tokens_lost) == (0, 0)
    assert (b.num_preemptions, b.num_tokens_lost, b.max_itl_s) == (1, 5, 2.5)
    assert len(delta.first_tokens) == 2  # the second prefill is no first token


def test_a_preemption_before_the_first_token_labels_no_gap() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.add("b", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4), (B, 0, 2)], {A: 1})
    trace.step(1.0, 2.0, [(A, 4, 1)], {A: 1}, {A: STOP}, preempted=(B,))
    trace.step(2.0, 3.0, [(B, 0, 4)], {B: 1})
    trace.step(3.0, 4.0, [(B, 4, 1)], {B: 1}, {B: STOP})
    delta = trace.collector.drain()
    assert delta.itl_preempted_s == ()
    assert delta.num_tokens_lost == 2
    assert delta.first_tokens[1] == ("b", 0.0, 3.0, 3.0)


def test_tokens_of_one_step_share_the_gap_before_them() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4)], {A: 2})  # nothing before them: the second comes 0 s after the first
    trace.step(1.0, 4.0, [(A, 6, 1)], {A: 3}, {A: STOP})
    delta = trace.collector.drain()
    assert delta.itl_s == (0.0, 1.0, 1.0, 1.0)
    assert delta.ended[0].tpot_s == (0.75,)
    assert sum(delta.itl_s) == delta.ended[0].tpot_s[0] * 4


def test_choices_have_their_own_gaps_and_one_record() -> None:
    trace = Trace()
    trace.add("a", at=0.0, num_prompt=4, n=2)
    first, second = ("a", 0), ("a", 1)
    trace.step(0.0, 1.0, [(first, 0, 4)], {first: 1})
    trace.step(1.0, 2.0, [(first, 4, 1), (second, 0, 4)], {first: 1, second: 1}, {first: STOP})
    assert trace.collector.drain().ended == ()
    trace.step(2.0, 5.0, [(second, 4, 1)], {second: 1}, {second: LENGTH})
    delta = trace.collector.drain()
    assert delta.itl_s == (3.0,)
    assert (delta.num_prompt_tokens, delta.num_output_tokens) == (0, 1)  # the prompt was counted once, before
    (record,) = delta.ended
    assert record.outcome is Outcome.LENGTH  # one of its choices was
    assert (record.num_choices, record.num_prompt_tokens, record.num_output_tokens) == (2, 4, 4)
    assert record.tpot_s == (1.0, 3.0)
    assert (record.ttft_s, record.e2e_s) == (1.0, 5.0)


def test_aborted_while_waiting_has_no_times_but_its_end() -> None:
    trace = Trace()
    trace.add("a", at=1.0)
    trace.abort("a", at=3.5)
    trace.abort("a", at=4.0)  # a second time
    trace.abort("nobody", at=4.0)
    delta = trace.collector.drain()
    (record,) = delta.ended
    assert record.outcome is Outcome.ABORTED
    assert (record.queue_s, record.ttft_s, record.e2e_s, record.tpot_s) == (None, None, 2.5, ())
    assert (delta.num_prompt_tokens, delta.num_output_tokens, delta.first_tokens) == (0, 0, ())


def test_what_a_step_gives_after_the_abort_is_not_counted() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    output = trace.schedule(1.0, [(A, 0, 4)])
    trace.abort("a", at=1.5)
    trace.update(2.0, output, {A: 1}, {A: FinishReason.ABORT})
    delta = trace.collector.drain()
    assert delta.num_output_tokens == 0
    assert [record.outcome for record in delta.ended] == [Outcome.ABORTED]
    assert delta.ended[0].queue_s == 1.0


def test_an_aborted_sequence_has_no_tpot() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4)], {A: 1})
    trace.step(1.0, 2.0, [(A, 4, 1)], {A: 1})
    trace.abort("a", at=2.5)
    (record,) = trace.collector.drain().ended
    assert (record.tpot_s, record.num_output_tokens, record.e2e_s) == ((), 2, 2.5)


def test_rejected_and_failed() -> None:
    trace = Trace()
    trace.add("full", at=0.0, rejected=Rejected(Reason.QUEUE_FULL, "full"))
    trace.add("a", at=0.0, n=2)
    other = ("a", 1)
    trace.step(0.0, 1.0, [(A, 0, 4), (other, 0, 4)], {A: 1}, {A: STOP, other: ERROR})
    delta = trace.collector.drain()
    assert delta.rejected == (Reason.QUEUE_FULL,)
    (record,) = delta.ended
    assert (record.outcome, record.error) == (Outcome.FAILED, "boom")


def test_a_failed_step_stored_nothing_that_preemption_could_lose() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4)], {A: 1})
    trace.update(2.0, trace.schedule(1.0, [(A, 4, 1)]), {}, failed="no memory")
    trace.add("b", at=0.0)
    trace.step(2.0, 3.0, [(B, 0, 4)], {B: 1}, preempted=(A,))
    assert trace.collector.drain().num_tokens_lost == 4


def test_a_sequence_that_is_swapped_out_loses_nothing_and_comes_back_where_it_was() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.add("b", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4), (B, 0, 4)], {A: 1, B: 1})
    out, back = (BlockCopy(True, 1, 0), BlockCopy(True, 2, 1)), (BlockCopy(False, 3, 0),)
    trace.update(2.0, trace.schedule(1.0, [(A, 4, 1)], (B,), (B,), out), {A: 1}, {A: STOP})
    trace.update(3.0, trace.schedule(2.0, [(B, 4, 1)], copies=back), {B: 1})
    delta = trace.collector.drain()
    assert (delta.num_preemptions, delta.num_swapped_out, delta.num_tokens_lost) == (1, 1, 0)
    assert (delta.num_blocks_out, delta.num_blocks_in, delta.copies_s) == (2, 1, 0.75)
    assert delta.itl_preempted_s == (2.0,)
    trace.add("c", at=3.0)
    trace.step(3.0, 4.0, [(("c", 0), 0, 4)], {}, preempted=(B,))  # and now without a place in the host tier
    assert trace.collector.drain().num_tokens_lost == 5


def test_what_a_failed_step_should_have_swapped_out_is_lost() -> None:
    trace = Trace()
    trace.add("a", at=0.0)
    trace.add("b", at=0.0)
    trace.step(0.0, 1.0, [(A, 0, 4), (B, 0, 4)], {A: 1, B: 1})
    output = trace.schedule(1.0, [(A, 4, 1)], (B,), (B,), (BlockCopy(True, 1, 0),))
    assert trace.collector.drain().num_tokens_lost == 0
    trace.update(2.0, output, {}, failed="torn")
    delta = trace.collector.drain()
    assert (delta.num_tokens_lost, delta.num_blocks_out, delta.copies_s) == (4, 0, 0.0)


def test_the_cached_tokens_of_a_record_are_those_of_the_first_choice_when_it_first_entered() -> None:
    trace = Trace()
    trace.add("a", at=0.0, num_prompt=8, n=2)
    first, second = ("a", 0), ("a", 1)
    trace.step(0.0, 1.0, [(first, 4, 4)], {first: 1})
    trace.step(1.0, 2.0, [(second, 7, 1)], {second: 1}, {second: STOP}, preempted=(first,))
    trace.step(2.0, 3.0, [(first, 8, 1)], {first: 1}, {first: STOP})  # all of it is still in the cache
    (record,) = trace.collector.drain().ended
    assert (record.num_cached_tokens, record.num_tokens_lost) == (4, 8)


def test_prompts_are_kept_only_if_asked_for() -> None:
    for keep, expected in ((False, ()), (True, (1, 2, 3))):
        trace = Trace(keep)
        trace.add("a", at=0.0, num_prompt=3)
        trace.abort("a", at=1.0)
        assert trace.collector.drain().ended[0].prompt_token_ids == expected


def test_a_delta_crosses_processes_unchanged() -> None:
    trace = Trace(keep_prompts=True)
    trace.add("full", at=0.0, rejected=Rejected(Reason.CONTEXT_LENGTH, "long"))
    trace.add("a", at=0.0)
    trace.step(0.5, 1.0, [(A, 0, 4)], {A: 1})
    trace.step(1.0, 2.0, [(A, 4, 1)], {A: 1}, {A: STOP})
    delta = trace.collector.drain()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=MetricsDelta) == delta
    assert trace.collector.drain() == MetricsDelta()


@given(
    gaps=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4)), min_size=1, max_size=20),
    preempted_at=st.sets(st.integers(1, 19)),
)
def test_the_gaps_add_up_to_the_time_from_first_to_last_token(
    gaps: list[tuple[int, int]], preempted_at: set[int]
) -> None:
    """Whatever the steps give and wherever preemptions fall; times are sixteenths of a second."""
    trace = Trace()
    trace.add("a", at=0.0)
    now = 0.0
    for index, (gap, num_tokens) in enumerate(gaps):
        if index in preempted_at:
            trace.add(f"other{index}", at=now)
            trace.step(now, now, [((f"other{index}", 0), 0, 1)], {}, preempted=(A,))
        end = now + gap / 16
        last = index == len(gaps) - 1
        trace.step(now, end, [(A, 0, 4)], {A: num_tokens}, {A: STOP} if last else {})
        now = end
    delta = trace.collector.drain()
    num_tokens = sum(count for _, count in gaps)
    samples = delta.itl_s + delta.itl_preempted_s
    assert len(samples) == num_tokens - 1
    assert sum(samples) == pytest.approx(now - gaps[0][0] / 16)
    record = delta.ended[0]
    assert record.ttft_s is not None
    if num_tokens > 1:
        assert record.tpot_s[0] == pytest.approx((record.e2e_s - record.ttft_s) / (num_tokens - 1))
    assert record.num_output_tokens == delta.num_output_tokens == num_tokens
