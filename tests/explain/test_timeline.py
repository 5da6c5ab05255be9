"""Cells against the ledger, seats that are kept, and what a log can have wrong with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explain.logs import LogWriter, continuous_log, poisson_arrivals, request, served_log, static_log
from inflight.explain import text
from inflight.explain.log import open_log
from inflight.explain.read_timeline import read_timeline
from inflight.explain.timeline import Span, Timeline
from inflight.explain.view import shares, view
from inflight.metrics.ledger import COMPUTED, Slots
from inflight.schedulers.config import DynamicConfig, RequestLevelConfig, StaticConfig

A, B, C = ("a", 0), ("b", 0), ("c", 0)


def timeline_of(path: Path) -> Timeline:
    return read_timeline(open_log(path))


def cells(spans: tuple[Span, ...]) -> dict[int, tuple[str, ...]]:
    """By column, the classes; a column twice would be lost, so they are counted too."""
    flat = [(span.column + i, tuple(name for name, _ in span.parts)) for span in spans for i in range(span.num_steps)]
    assert len({column for column, _ in flat}) == len(flat)
    return dict(flat)


def line(spans: tuple[Span, ...]) -> str:
    """The first letters of the classes; / stands between those of one cell."""
    by_column = cells(spans)
    letters = {"preempted": "X", "swapped": "S", "padding": "_"}
    return " ".join(
        "/".join(letters.get(name, name[0]) for name in by_column[column])
        for column in range(max(by_column) + 1)
        if column in by_column
    )


def check_conservation(timeline: Timeline) -> None:
    """Both views hold each computed token once, and the seats hold every seat of every step once."""
    slots = timeline.slots
    for tracks in (timeline.seats, [track.spans for track in timeline.sequences]):
        counted: Counter[str] = Counter()
        for spans in tracks:
            cells(spans)
            for span in spans:
                for name, num_tokens in span.parts:
                    counted[name] += span.num_steps * num_tokens
        assert {name: counted[name] for name in COMPUTED} == {name: getattr(slots, name) for name in COMPUTED}
    seat_cells = Counter(names for spans in timeline.seats for names in cells(spans).values())
    assert seat_cells.total() == slots.seat_steps == len(timeline.steps) * len(timeline.seats)
    assert seat_cells["empty",] == slots.empty
    assert seat_cells["straggler",] == slots.dead


def test_a_static_batch(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"a": (4, 3), "b": (2, 1), "c": (3, 2)}, num_seats=2))
    check_conservation(timeline)
    assert [line(spans) for spans in timeline.seats] == ["p d d p d", "_/p s s e e"]
    assert [line(track.spans) for track in timeline.sequences] == ["p d d", "_/p s s", "w w w p d"]
    assert [track.num_new_tokens for track in timeline.sequences] == [
        3,
        1,
        2,
    ]  # though released at the end
    assert [step.num_waiting for step in timeline.steps] == [1, 1, 1, 0, 0]
    assert timeline.slots == Slots(prefill=9, decode=3, padding=2, straggler=2, seat_steps=10, dead=2, empty=2)


def test_without_padding_an_ended_row_leaves_its_seat_empty_until_the_batch_ends(tmp_path: Path) -> None:
    path = static_log(tmp_path / "log", {"a": (4, 3), "b": (2, 1), "c": (3, 2)}, num_seats=2, padding=False)
    timeline = timeline_of(path)
    check_conservation(timeline)
    assert [line(spans) for spans in timeline.seats] == ["p d d p d", "p e e e e"]
    assert [line(track.spans) for track in timeline.sequences] == ["p d d", "p e e", "w w w p d"]


def test_a_sequence_keeps_its_seat_and_a_freed_one_is_taken(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 2)
    for name in "abc":
        log.add(name, 2)
    log.step([(A, 0, 2), (B, 0, 2)])
    log.step([(A, 2, 1), (B, 2, 1)], ended=(A,))
    log.step([(B, 3, 1), (C, 0, 2)], ended=(B, C))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert [[span.sequence for span in spans] for spans in timeline.seats] == [[0, 0, 2], [1, 1]]
    assert [line(track.spans) for track in timeline.sequences] == ["p d", "p d d", "w w p"]


def test_preemption_failure_and_abort(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 3)
    for name in "abc":
        log.add(name, 2)
    log.step([(A, 0, 2), (B, 0, 2)])
    log.step([(A, 2, 1)], preempted=(B,))
    log.step([(A, 3, 1), (B, 0, 3)], failure="torn")
    log.step([(A, 3, 1)])  # the rows of the failed step, one by one
    log.step([(B, 0, 3)])
    log.abort("c")
    log.step([(A, 4, 1), (B, 3, 1)], ended=(A, B))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert [line(track.spans) for track in timeline.sequences] == ["p d r d e d", "p X r e r/d d", "w w w w w"]
    assert [step.failed for step in timeline.steps] == [False, False, True, False, False, False]
    assert [step.num_waiting for step in timeline.steps] == [1, 2, 1, 1, 1, 0]
    assert timeline.sequences[2].first_step_s is None


def test_a_row_aborted_in_flight_is_still_computed(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 1)
    log.add("a", 2)
    log.add("b", 2)
    output = log.begin([(A, 0, 2)])
    log.abort("a")
    log.end(output)
    log.step([(B, 0, 2)], finished=(A,), ended=(B,))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert [line(track.spans) for track in timeline.sequences] == ["p", "w p"]


def test_an_aborted_row_may_stay_as_a_dead_one(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "static", 2)
    log.add("a", 2)
    log.add("b", 2)
    log.add("c", 2)
    log.step([(A, 0, 2), (B, 0, 2)], padded_to=2)
    log.abort("a")
    log.step([(B, 2, 1)], padded_to=1, dead=((A, 2),), finished=(A,))
    log.step([(B, 3, 1)], padded_to=1, dead=((A, 3),), ended=(B,))
    log.step([(C, 0, 2)], padded_to=2, ended=(C,))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert [line(spans) for spans in timeline.seats] == ["p s s p", "p d d e"]


def test_a_dead_row_keeps_its_own_seat_though_another_is_free(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "dynamic", 3)
    for name in "abc":
        log.add(name, 2)
    log.step([(A, 0, 2), (B, 0, 2), (C, 0, 2)], padded_to=2, ended=(A, B))
    log.step([(C, 2, 1)], padded_to=1, dead=((B, 2),))
    log.step([(C, 3, 1)])  # a step without the dead, such as one that is tried again
    log.step([(C, 4, 1)], padded_to=1, dead=((B, 2),), ended=(C,))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert line(timeline.seats[1])[:3] == "p s"
    assert sorted(cells(timeline.sequences[1].spans)) == [0, 1, 3]


def test_choices_have_tracks_of_their_own(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 2)
    log.add("a", 3, n=2)
    log.step([(A, 0, 3), (("a", 1), 0, 3)], ended=(A, ("a", 1)))
    timeline = timeline_of(log.close())
    assert [row.label for row in view(timeline, "requests").rows] == ["a 3+1", "a#1 3+1"]


def test_who_comes_while_a_step_runs_could_not_have_joined_it(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 2)
    log.add("a", 3)
    output = log.begin([(A, 0, 3)])
    log.add("b", 3)
    log.end(output)
    log.step([(A, 3, 1), (B, 0, 3)], ended=(A, B))
    assert [track.spans[0].column for track in timeline_of(log.close()).sequences] == [0, 1]


@pytest.mark.parametrize("num_blocks", [4096, 60])  # 60: with preemptions
def test_a_real_scheduler(tmp_path: Path, num_blocks: int) -> None:
    options = {"enable_prefix_caching": False, "admission": "none", "preemption_mode": "recompute"}
    path = continuous_log(tmp_path / "log", poisson_arrivals(3, 20, 100, 60), 8, num_blocks, **options)
    timeline = timeline_of(path)
    check_conservation(timeline)
    assert timeline.slots.padding == timeline.slots.straggler == 0
    assert (timeline.slots.recompute > 0) == (num_blocks == 60)
    classes = {name for track in timeline.sequences for span in track.spans for name, _ in span.parts}
    assert ("preempted" in classes) == (num_blocks == 60)


def test_what_is_found_is_in_no_cell_and_who_is_swapped_out_waits(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 2)
    for name in "abc":
        log.add(name, 4)
    log.step([(A, 0, 4), (B, 3, 1)])  # of b's prompt three tokens were found
    log.step([(A, 4, 1)], preempted=(B,), swapped_out=(B,))
    log.step([(A, 5, 1), (C, 0, 4)], ended=(C,))
    log.step([(A, 6, 1), (B, 4, 1)])
    log.step([(A, 7, 1)], preempted=(B,), swapped_out=(B,), failure="torn")  # what became of its KV nobody knows
    log.step([(A, 7, 1)])
    log.step([(A, 8, 1), (B, 0, 6)], ended=(A, B))
    timeline = timeline_of(log.close())
    check_conservation(timeline)
    assert [line(track.spans) for track in timeline.sequences] == ["p d d d r d d", "p S S d X X r/d", "w w p"]
    assert [track.num_cached_tokens for track in timeline.sequences] == [0, 3, 0]
    assert [step.num_waiting for step in timeline.steps] == [1, 2, 1, 0, 1, 1, 0]
    assert timeline.slots.recompute == 6  # one of the step that failed, and all that b had passed
    table = text.ledger_table(timeline)
    assert "from the prefix cache              3   25.0 % of all prompt tokens, not computed" in table


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_a_real_scheduler_that_shares_and_swaps(tmp_path: Path, prefix_cache: str) -> None:
    arrivals = poisson_arrivals(3, 20, 100, 60, num_shared=64)
    options = {"admission": "none", "preemption_mode": "swap", "prefix_cache": prefix_cache}
    path = continuous_log(tmp_path / "log", arrivals, 8, 60, num_host_blocks=64, **options)
    timeline = timeline_of(path)
    check_conservation(timeline)
    classes = {name for track in timeline.sequences for span in track.spans for name, _ in span.parts}
    assert "swapped" in classes
    num_cached = sum(track.num_cached_tokens for track in timeline.sequences)
    assert num_cached >= 10 * 64
    assert timeline.slots.prefill == sum(len(one.prompt_token_ids) for _, one in arrivals) - num_cached


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("family", [StaticConfig, DynamicConfig])
def test_a_real_request_level_scheduler(tmp_path: Path, family: type[RequestLevelConfig], padding: bool) -> None:
    """Every choice is there, and each of its tokens is computed once; what is wasted depends on the padding."""
    window = {"fill_timeout_ms": 80.0} if family is StaticConfig else {"max_wait_ms": 20.0}
    arrivals = poisson_arrivals(4, 30, 40, 40)
    path = served_log(tmp_path / "log", family(max_model_len=512, padding=padding, **window), arrivals, 512)
    timeline = timeline_of(path)
    check_conservation(timeline)
    slots = timeline.slots
    assert slots.prefill == sum(len(one.prompt_token_ids) for _, one in arrivals)
    assert slots.decode == sum(one.sampling.max_tokens - 1 for _, one in arrivals)
    assert [track.num_new_tokens for track in timeline.sequences] == [one.sampling.max_tokens for _, one in arrivals]
    assert (slots.padding > 0) == (slots.straggler > 0) == padding
    assert slots.recompute == 0
    assert slots.empty > 0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=9),
    num_seats=st.integers(1, 4),
    padding=st.booleans(),
    first=st.integers(0, 5),
    num_steps=st.integers(1, 6),
    num_bins=st.integers(1, 30),
)
def test_every_cell_once_whatever_is_batched_clipped_or_binned(
    tmp_path: Path,
    lengths: list[tuple[int, int]],
    num_seats: int,
    padding: bool,
    first: int,
    num_steps: int,
    num_bins: int,
) -> None:
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    requests = {f"r{index}": length for index, length in enumerate(lengths)}
    timeline = timeline_of(static_log(path, requests, num_seats, padding))
    check_conservation(timeline)
    assert timeline.slots.prefill == sum(num_prompt for num_prompt, _ in lengths)
    assert timeline.slots.decode == sum(num_new - 1 for _, num_new in lengths)
    if first < len(timeline.steps):
        timeline = timeline.clip(first, num_steps)
        check_conservation(timeline)
    seen = view(timeline)
    for row in seen.rows:
        binned = shares(row, seen.start, seen.end, num_bins)
        assert [sum(one.values()) for one in binned] == pytest.approx([1.0] * num_bins)
        useful = sum(sum(one.get(name, 0.0) for name in ("prefill", "decode", "padding")) for one in binned)
        num_cells = sum(
            one.span.num_steps for one in row.intervals if one.span.parts[0][0] not in ("empty", "straggler")
        )
        assert useful * len(timeline.steps) / num_bins == pytest.approx(num_cells)


def test_seconds_are_those_of_the_log_and_waiting_begins_with_the_arrival(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "dynamic", 1)
    log.now_s = 100.0
    log.add("a", 2)
    log.now_s = 100.5  # the window; no step ran
    log.step([(A, 0, 2)], padded_to=2, ended=(A,), step_s=0.25)
    timeline = timeline_of(log.close())
    assert timeline.steps[0][:3] == (0, 0.5, 0.75)
    seen = view(timeline, "requests", "time")
    assert [(one.start, one.end, one.span.parts) for one in seen.rows[0].intervals] == [
        (0.0, 0.5, (("waiting", 0),)),
        (0.5, 0.75, (("prefill", 2),)),
    ]
    assert line(timeline.sequences[0].spans) == "p"


def test_the_last_of_several_engines(tmp_path: Path) -> None:
    path = static_log(tmp_path / "log", {"a": (4, 3)}, num_seats=2)
    static_log(path, {"b": (2, 1)}, num_seats=3)
    timeline = timeline_of(path)
    assert [track.seq_id for track in timeline.sequences] == [B]
    assert len(timeline.seats) == 3
    assert timeline.notes == ("2 engines wrote into this log, one after the other; this is the last of them",)


def test_a_log_that_was_cut_short(tmp_path: Path) -> None:
    path = static_log(tmp_path / "log", {"a": (4, 3)}, num_seats=1)
    path.write_bytes(path.read_bytes()[:-5])
    timeline = timeline_of(path)
    check_conservation(timeline)
    assert len(timeline.steps) == 2
    assert timeline.notes == ("the log ends in the middle of step 2, which is left out",)


def test_a_log_without_a_step(tmp_path: Path) -> None:
    timeline = timeline_of(LogWriter(tmp_path / "log", "static", 2).close())
    assert timeline.steps == ()
    assert timeline.slots == Slots()
    with pytest.raises(ValueError, match="the log holds no step"):
        timeline.clip(0)


def test_clipping_names_what_there_is(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"a": (4, 3)}, num_seats=1))
    with pytest.raises(ValueError, match="no step from 7 to 8: the log holds steps 0 to 2"):
        timeline.clip(7, 2)
    with pytest.raises(ValueError, match="no step from 7 on: the log holds steps 0 to 2"):
        timeline.clip(7)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it holds no whole line"),
        (b'{"event":"start"', "it holds no whole line"),
        (b"nonsense\n", "line 1"),
        (b'{"event":"abort","now_s":0.0,"request_id":"a"}\n', "line 1: a step log begins with a start line"),
        (b'{"event":"start","scheduler":"dream","config":{},"num_blocks":1,"block_size":1}\n', "'dream' is not known"),
        (
            b'{"event":"start","scheduler":"static","config":{"batch_size":0},"num_blocks":1,"block_size":1}\n',
            "batch_size must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_files_that_are_no_step_log(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_log(tmp_path / "log")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be read: No such file"):
        open_log(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("missing", "message"),
    [(1, "never added"), (2, "does not hold its beginning"), (3, "begins before step 0 has ended")],
)
def test_a_log_with_a_hole_is_refused(tmp_path: Path, missing: int, message: str) -> None:
    path = static_log(tmp_path / "log", {"a": (4, 3)}, num_seats=1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:missing] + lines[missing + 1 :]))
    with pytest.raises(ValueError, match=message):
        timeline_of(path)


def test_more_rows_than_seats_are_refused(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 1)
    log.add("a", 1)
    log.add("b", 1)
    log.step([(A, 0, 1), (B, 0, 1)])
    with pytest.raises(ValueError, match="2 rows on 1 seats"):
        timeline_of(log.close())


def test_a_name_is_used_again(tmp_path: Path) -> None:
    path = continuous_log(tmp_path / "log", [(0.0, request("a", 3, 2)), (9.0, request("a", 4, 3))], 2)
    timeline = timeline_of(path)
    check_conservation(timeline)
    assert [track.num_new_tokens for track in timeline.sequences] == [2, 3]
