"""A trace made to fit keeps its order, its gaps in proportion and what its prompts share."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inflight.workload.arrivals import mean_rate_per_s
from inflight.workload.shape import arrive_at, clip, scale_lengths, scale_rate
from inflight.workload.trace import Trace, TraceRequest
from workload.traces import traces

factors = st.floats(0.01, 10)


def rate_of(trace: Trace) -> float | None:
    return mean_rate_per_s([request.arrival_s for request in trace])


@given(traces(), factors)
def test_lengths_are_scaled_and_rounded_and_blocks_as_wholes(trace: Trace, factor: float) -> None:
    scaled = scale_lengths(trace, factor)
    for before, after in zip(trace, scaled, strict=True):
        assert after.arrival_s == before.arrival_s
        assert after.prefix_ids == before.prefix_ids
        assert after.num_output_tokens == max(round(before.num_output_tokens * factor), 1)
        if not before.prefix_ids:
            assert after.num_prompt_tokens == max(round(before.num_prompt_tokens * factor), 1)
            continue
        # As many whole blocks as before, and a part of one if there was one.
        assert after.prefix_block_tokens == max(round(before.prefix_block_tokens * factor), 1)
        whole = before.num_prompt_tokens // before.prefix_block_tokens
        rest = after.num_prompt_tokens - whole * after.prefix_block_tokens
        assert rest == max(round(before.num_prompt_tokens % before.prefix_block_tokens * factor), 1) or (
            rest == 0 and before.num_prompt_tokens % before.prefix_block_tokens == 0
        )
    assert scaled.notes == (f"lengths x {factor:g}",)


def test_no_factor_is_too_large() -> None:
    scaled = scale_lengths(Trace((TraceRequest(0.0, 3, 5),)), 1e308)
    assert clip(scaled, 100).requests == (TraceRequest(0.0, 50, 50),)


@given(traces())
def test_a_factor_of_one_changes_nothing(trace: Trace) -> None:
    assert scale_lengths(trace, 1.0).requests == trace.requests


@given(traces(min_size=2), st.floats(1e-3, 1e3))
def test_the_rate_is_as_asked_and_gaps_keep_their_proportion(trace: Trace, rate: float) -> None:
    rate_before = rate_of(trace)
    assume(rate_before is not None and rate_before < math.inf)
    scaled = scale_rate(trace, rate)
    rate_after = rate_of(scaled)
    assert rate_after is not None
    start_s = trace.requests[0].arrival_s
    last_s = scaled.requests[-1].arrival_s
    # The gaps are differences, so that what rounding loses is relative to the times themselves.
    assert 1 / rate_after == pytest.approx(1 / rate, rel=1e-9, abs=1e-12 * last_s)
    factor = rate_before / rate
    for before, after in zip(trace, scaled, strict=True):
        since_s = after.arrival_s - scaled.requests[0].arrival_s
        assert since_s == pytest.approx((before.arrival_s - start_s) * factor, rel=1e-9, abs=1e-12 * last_s)
    assert all(one.arrival_s <= other.arrival_s for one, other in pairwise(scaled))
    lengths = [(one.num_prompt_tokens, one.num_output_tokens, one.prefix_ids) for one in trace]
    assert [(one.num_prompt_tokens, one.num_output_tokens, one.prefix_ids) for one in scaled] == lengths


@given(traces())
def test_an_infinite_rate_is_all_at_once(trace: Trace) -> None:
    assert {request.arrival_s for request in scale_rate(trace, math.inf)} == {0.0}


def test_requests_all_at_once_have_no_rate_to_scale() -> None:
    at_once = Trace((TraceRequest(0.0, 1, 1), TraceRequest(0.0, 1, 1)))
    with pytest.raises(ValueError, match="all at once"):
        scale_rate(at_once, 3.0)
    alone = Trace(at_once.requests[:1])
    assert scale_rate(alone, 3.0).requests == alone.requests


@given(traces(), st.integers(2, 60))
def test_exactly_what_is_too_long_is_shortened_and_counted(trace: Trace, max_model_len: int) -> None:
    clipped = clip(trace, max_model_len)
    num_shortened = 0
    for before, after in zip(trace, clipped, strict=True):
        total = before.num_prompt_tokens + before.num_output_tokens
        assert after.num_prompt_tokens + after.num_output_tokens == min(total, max_model_len)
        assert 1 <= after.num_prompt_tokens <= before.num_prompt_tokens
        assert after.num_output_tokens >= min(before.num_output_tokens, max_model_len // 2)
        assert (after == before) == (total <= max_model_len)
        num_shortened += after != before
    note = f"{num_shortened} of {len(trace)} shortened to {max_model_len} tokens"
    assert clipped.notes == ((note,) if num_shortened else ())


def test_values_out_of_range_are_refused() -> None:
    trace = Trace((TraceRequest(0.0, 1, 1), TraceRequest(1.0, 1, 1)))
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="factor"):
            scale_lengths(trace, factor)
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="rate"):
            scale_rate(trace, rate)
    with pytest.raises(ValueError, match="max_model_len"):
        clip(trace, 1)
    with pytest.raises(ValueError, match="shorter"):
        arrive_at(trace, [0.0], "one time for two")
    with pytest.raises(ValueError, match="sorted"):
        arrive_at(trace, [1.0, 0.0], "backwards")
