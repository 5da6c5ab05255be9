"""Which rows share a batch: the pure function, against the reference that the laws use."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.request import Request, SamplingParams
from inflight.core.sequence import Sequence
from inflight.schedulers.config import DynamicConfig, StaticConfig
from inflight.schedulers.forming import Batch, form_batch
from laws.window_law import Waiting, WindowLaw


def sequence(index, num_prompt=2, num_new=2, arrival_s=0.0):
    request = Request(
        request_id=str(index),
        prompt_token_ids=(0,) * num_prompt,
        sampling=SamplingParams(max_tokens=num_new),
        arrival_s=arrival_s,
    )
    return Sequence(request, 0, (0.0, index), num_prompt + num_new)


def form(rows, config, now_s=0.0, flushed=(), num_tokens_in_memory=math.inf):
    def fits(rows):
        return sum(row.max_num_stored for row in rows) <= num_tokens_in_memory

    return form_batch(rows, config.trigger, now_s, lambda row: row.key[1] in flushed, fits)


def numbers(batch):
    return [row.key[1] for row in batch.rows]


def test_nobody_waits_and_nobody_is_woken():
    assert form([], DynamicConfig()) == Batch([], None)


@pytest.mark.parametrize(("now_s", "expected"), [(1.0, []), (1.4, []), (1.5, [0, 1])])
def test_the_window_of_the_oldest(now_s, expected):
    rows = [sequence(0, arrival_s=1.0), sequence(1, arrival_s=1.25)]
    batch = form(rows, DynamicConfig(max_wait_ms=500), now_s)
    assert numbers(batch) == expected
    assert batch.wake_at_s == (None if expected else 1.5)


def test_each_bin_has_a_window_of_its_own_and_the_first_one_wakes():
    config = DynamicConfig(max_wait_ms=500, length_bins=(4,))
    rows = [sequence(0, num_prompt=5, arrival_s=1.0), sequence(1, arrival_s=0.75)]
    assert form(rows, config, 1.0) == Batch([], 1.25)
    assert numbers(form(rows, config, 1.25)) == [1]
    assert numbers(form(rows, config, 1.5)) == [0]  # both are ready: the earlier head


def test_one_row_alone_leaves_even_if_nobody_else_could_join_it():
    assert numbers(form([sequence(0), sequence(1)], StaticConfig(batch_size=8), num_tokens_in_memory=3)) == [0]


configs = st.one_of(
    st.builds(StaticConfig, batch_size=st.integers(1, 4), fill_timeout_ms=st.none() | st.sampled_from([0, 125, 500])),
    st.builds(
        DynamicConfig,
        max_batch_size=st.just(4),
        max_wait_ms=st.sampled_from([0, 125, 500]),
        max_tokens_in_batch=st.none() | st.integers(8, 40),
        preferred_batch_size=st.lists(st.integers(1, 4), max_size=2).map(tuple),
        length_bins=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    ),
)
rows = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 8)), max_size=8)


@given(configs, rows, st.integers(6, 40), st.sets(st.integers(0, 7)), st.integers(8, 16))
def test_it_is_the_reference(config, rows, memory, flushed, now):
    """At a time at which everybody has come: the same rows, or the same time to wake."""
    sequences = [sequence(i, prompt, new, tick / 8) for i, (prompt, new, tick) in enumerate(rows)]
    sequences = [one for one in sequences if one.max_num_tokens <= (config.trigger.max_tokens or 99)]
    memory = max([memory, *(one.max_num_stored for one in sequences)])
    waiting = [
        Waiting(
            one.seq_id,
            one.key,
            one.request.arrival_s,
            one.num_prompt_tokens,
            one.max_num_tokens - one.num_prompt_tokens,
            one.max_num_stored,
            flush_s=0.0 if one.key[1] in flushed else math.inf,
        )
        for one in sequences
    ]
    found = form(sequences, config, now / 8, flushed, memory)
    expected = WindowLaw(config, memory).next_batch(waiting, now / 8)
    if expected.start_s == now / 8:
        assert [row.seq_id for row in found.rows] == expected.rows
    else:
        assert found == Batch([], None if expected.start_s == math.inf else expected.start_s)
