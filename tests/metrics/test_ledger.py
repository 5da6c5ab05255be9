"""Every row-slot has one class, and the classes add up to what was computed: by hand, and over random steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.errors import InvariantViolation
from inflight.core.output import (
    DeadRow,
    FinishReason,
    NewSequence,
    ScheduledSequence,
    SchedulerOutput,
    TokenEvent,
)
from inflight.core.request import SamplingParams, SeqId
from inflight.engine.recorder import Scheduled, Updated
from inflight.metrics.ledger import COMPUTED, Ledger, RowTokens, Slots
from metrics.worlds import watch

A, B, C = ("a", 0), ("b", 0), ("c", 0)


def row(seq_id: SeqId, start: int, num_tokens: int) -> ScheduledSequence:
    return ScheduledSequence(seq_id, (7,) * num_tokens, start, (0,), 1)


def new(seq_id: SeqId, num_prompt_tokens: int) -> NewSequence:
    return NewSequence(seq_id, (7,) * num_prompt_tokens, SamplingParams(), ())


def test_seven_short_rows_and_a_long_one() -> None:
    """One batch of eight, equal prompts: after 49 decode steps seven rows are dead, and the eighth takes 200 more."""
    lengths = {(f"r{index}", 0): 250 if index == 7 else 50 for index in range(8)}
    ledger = Ledger(num_seats=8)
    rows = tuple(row(seq_id, 0, 20) for seq_id in lengths)
    first = SchedulerOutput("main", 0, rows, tuple(new(seq_id, 20) for seq_id in lengths), padded_to=20)
    ledger.on_update(first, False, ())
    assert ledger.slots == Slots(prefill=160, seat_steps=8)
    for step in range(1, 250):
        alive = tuple(row(seq_id, 19 + step, 1) for seq_id, length in lengths.items() if length > step)
        dead = tuple(DeadRow(seq_id, 19 + step) for seq_id, length in lengths.items() if length <= step)
        ledger.on_update(SchedulerOutput("main", step, alive, padded_to=1, dead=dead), False, ())
    decoded = ledger.slots - Slots(prefill=160, seat_steps=8)
    assert decoded.num_computed_tokens == decoded.seat_steps == 249 * 8 == 1992
    assert (decoded.straggler, decoded.dead, decoded.padding, decoded.empty) == (1400, 1400, 0, 0)
    computed, seats = decoded.shares()
    assert computed["straggler"] == seats["straggler"] == Fraction(1400, 1992)
    assert f"{float(computed['straggler']):.1%}" == "70.3%"


def test_padding_on_the_left_of_shorter_prompts() -> None:
    ledger = Ledger(num_seats=4)
    output = SchedulerOutput("main", 0, (row(A, 0, 10), row(B, 0, 4)), (new(A, 10), new(B, 4)), padded_to=10)
    ledger.on_update(output, False, ())
    assert ledger.slots == Slots(prefill=14, padding=6, seat_steps=4, empty=2)


def test_what_a_preempted_sequence_runs_again_is_recompute_but_not_its_newest_token() -> None:
    ledger = Ledger()
    ledger.on_update(SchedulerOutput("main", 0, (row(A, 0, 4),), (new(A, 4),)), False, ())
    ledger.on_update(SchedulerOutput("main", 1, (row(A, 4, 1),)), False, ())
    rows = ledger.on_update(SchedulerOutput("main", 2, (row(A, 0, 6),), preempted=(A,)), False, ())
    assert rows == (RowTokens(0, 1, 5),)
    assert ledger.slots == Slots(prefill=4, decode=2, recompute=5)


def test_a_prompt_that_was_preempted_halfway_goes_on_where_it_was() -> None:
    ledger = Ledger()
    ledger.on_update(SchedulerOutput("main", 0, (row(A, 0, 3),), (new(A, 8),)), False, ())
    rows = ledger.on_update(SchedulerOutput("main", 1, (row(A, 0, 8),), preempted=(A,)), False, ())
    assert rows == (RowTokens(5, 0, 3),)


def test_what_is_found_or_swapped_is_not_computed_and_in_no_class() -> None:
    ledger = Ledger()
    rows = ledger.on_update(SchedulerOutput("main", 0, (row(A, 4, 2),), (new(A, 8),)), False, ())
    assert rows == (RowTokens(2, 0, 0),)  # the first four were in the prefix cache
    ledger.on_update(
        SchedulerOutput("main", 1, (row(B, 0, 1),), (new(B, 1),), preempted=(A,), swapped_out=(A,)), False, ()
    )
    assert ledger.on_update(SchedulerOutput("main", 2, (row(A, 6, 3),)), False, ()) == (RowTokens(2, 1, 0),)
    # Preempted once more, and the cache has given up what it had found: all that it had passed is computed again.
    assert ledger.on_update(SchedulerOutput("main", 3, (row(A, 0, 10),)), False, ()) == (RowTokens(0, 1, 9),)
    assert ledger.slots == Slots(prefill=5, decode=2, recompute=9)


def test_the_tokens_of_a_failed_step_are_recompute_and_its_pads_are_pads() -> None:
    ledger = Ledger(num_seats=3)
    output = SchedulerOutput(
        "main", 0, (row(A, 0, 4), row(B, 0, 2)), (new(A, 4), new(B, 2)), padded_to=4, dead=(DeadRow(C, 9),)
    )
    ledger.on_update(output, True, ())
    assert ledger.slots == Slots(padding=2, straggler=4, recompute=6, seat_steps=3, dead=1)
    ledger.on_update(replace(output, step=1, new=()), False, ())
    assert ledger.slots.prefill == 6


def test_ended_sequences_are_forgotten() -> None:
    ledger = Ledger()
    ended = TokenEvent(A, (), FinishReason.STOP)
    ledger.on_update(SchedulerOutput("main", 0, (row(A, 0, 4), row(B, 0, 4)), (new(A, 4), new(B, 4))), False, (ended,))
    with pytest.raises(InvariantViolation, match="no step introduced it"):
        ledger.on_update(SchedulerOutput("main", 1, (row(A, 4, 1),)), False, ())
    ledger.on_update(SchedulerOutput("main", 1, (row(C, 0, 1),), (new(C, 1),), finished=(B,)), False, ())
    with pytest.raises(InvariantViolation):
        ledger.on_update(SchedulerOutput("main", 2, (row(B, 4, 1),)), False, ())


def test_more_rows_than_seats_are_refused() -> None:
    with pytest.raises(InvariantViolation, match="2 rows on 1 seats"):
        Ledger(1).on_update(SchedulerOutput("main", 0, (row(A, 0, 1), row(B, 0, 1)), (new(A, 1), new(B, 1))), False, ())


def test_nothing_has_no_shares() -> None:
    computed, seats = Slots().shares()
    assert {*computed.values(), *seats.values()} == {0}
    assert list(computed) == list(COMPUTED)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[SchedulerOutput, bool]]:
    """Random steps of up to four sequences that start, go back to 0, fail, are padded and die, in any order."""
    num_prompt = {(name, 0): draw(st.integers(1, 9)) for name in "abcd"}
    known: set[SeqId] = set()
    made = []
    for step in range(draw(st.integers(1, 12))):
        rows = tuple(
            row(seq_id, draw(st.integers(0, 12)), draw(st.integers(1, 6)))
            for seq_id in draw(st.lists(st.sampled_from(sorted(num_prompt)), min_size=1, max_size=4, unique=True))
        )
        dead = tuple(DeadRow((f"dead{index}", 0), 3) for index in range(draw(st.integers(0, 2))))
        padded_to = draw(st.integers(6, 8)) if dead or draw(st.booleans()) else None
        fresh = tuple(new(one.seq_id, num_prompt[one.seq_id]) for one in rows if one.seq_id not in known)
        known |= {one.seq_id for one in fresh}
        output = SchedulerOutput("main", step, rows, fresh, padded_to=padded_to, dead=dead)
        made.append((output, draw(st.booleans())))
    return made


@given(steps())
def test_the_classes_add_up_and_are_those_of_a_count_slot_by_slot(log: list[tuple[SchedulerOutput, bool]]) -> None:
    ledger, counted = Ledger(num_seats=6), Counter[str]()
    highest: dict[SeqId, int] = {}
    num_prompt = {one.seq_id: len(one.prompt_token_ids) for output, _ in log for one in output.new}
    for output, failed in log:
        rows = ledger.on_update(output, failed, ())
        assert [sum(one) for one in rows] == [len(one.token_ids) for one in output.scheduled]
        counted["seat_steps"] += 6
        counted["dead"] += len(output.dead)
        counted["empty"] += 6 - len(output.dead) - len(output.scheduled)
        for _ in output.dead:
            counted["straggler"] += output.padded_to or 0
        for one in output.scheduled:
            counted["padding"] += (output.padded_to or len(one.token_ids)) - len(one.token_ids)
            mark = highest.get(one.seq_id, -1)
            for position in range(one.start, one.start + len(one.token_ids)):
                if failed or position <= mark:
                    counted["recompute"] += 1
                else:
                    counted["prefill" if position < num_prompt[one.seq_id] else "decode"] += 1
                    highest[one.seq_id] = position
    assert asdict(ledger.slots) == {name: counted[name] for name in asdict(ledger.slots)}
    assert ledger.slots.num_computed_tokens == sum(output.num_computed_tokens for output, _ in log)
    for shares in ledger.slots.shares():
        assert sum(shares.values()) == 1


@pytest.mark.parametrize("family", ["continuous", "reuse"])
@pytest.mark.parametrize("seed", range(40))
def test_the_counters_are_the_ledger_of_the_log(seed: int, family: str) -> None:
    """A random world on a real scheduler: what /metrics says, the ledger of the step log says."""
    world = watch(seed, family)
    ledger, output = Ledger(world.num_seats), None
    for line in world.lines:
        if isinstance(line, Scheduled):
            output = line.output
        elif isinstance(line, Updated):
            ledger.on_update(output, line.failure is not None, line.events)
    slots = ledger.slots
    assert slots.num_computed_tokens == sum(one.output.num_tokens for one in world.lines if isinstance(one, Scheduled))
    assert (slots.padding, slots.straggler, slots.dead) == (0, 0, 0)
    assert all(sum(shares.values()) in (0, 1) for shares in slots.shares())
    seen = {
        next(iter(sample.labels.values()), "seat_steps"): sample.value
        for family in text_string_to_metric_families(world.metrics.render().decode())
        for sample in family.samples
        if sample.name.endswith(("slot_steps_total", "seat_steps_total"))
    }
    assert seen == {name: count for name, count in asdict(slots).items() if name != "dead"}
