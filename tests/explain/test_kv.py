"""The memory of a step, counted block by block and drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from explain.logs import LogWriter, continuous_log, poisson_arrivals
from inflight.core.output import ScheduledSequence, SchedulerOutput
from inflight.explain import kv_layout
from inflight.explain.kv_usage import KVUsage, kv_usage, usage_of, written_slots
from inflight.explain.log import open_log
from inflight.explain.view import name

A, B = ("a", 0), ("b", 0)


def paged(path: Path) -> Path:
    log = LogWriter(path, "continuous", 2, num_blocks=8, block_size=4)
    log.add("a", 6)
    log.add("b", 3)
    log.step([(A, 0, 6), (B, 0, 3)])
    log.step([(A, 6, 1), (B, 3, 1)])
    log.step([(A, 7, 1)], ended=(A,), finished=(B,))
    return log.close()


def test_usage_by_hand(tmp_path: Path) -> None:
    usages = kv_usage(open_log(paged(tmp_path / "log")))
    assert usages == [KVUsage(0, 12, 9, 2), KVUsage(1, 12, 11, 2), KVUsage(2, 8, 8, 1)]
    assert [usage.unused_share for usage in usages] == [0.25, pytest.approx(1 / 12), 0.0]


def test_contiguous_rows_reserve_their_whole_region() -> None:
    rows = (
        ScheduledSequence(A, (7,) * 5, 0, (0, 1, 2, 3), 1),
        ScheduledSequence(B, (7,), 8, (4, 5, 6, 7), 1),
    )
    output = SchedulerOutput("main", 0, rows, scratch_table=(8,))
    assert usage_of(output, 4) == KVUsage(0, 32, 14, 2)
    assert written_slots(output, 4) == {0: 4, 1: 1, 2: 0, 3: 0, 4: 4, 5: 4, 6: 1, 7: 0}
    assert usage_of(SchedulerOutput("main", 0, ()), 4).unused_share == 0.0


def test_a_block_that_two_rows_share_counts_once() -> None:
    rows = (ScheduledSequence(A, (7,), 4, (0, 1), 1), ScheduledSequence(B, (7,), 2, (0, 2), 1))
    assert usage_of(SchedulerOutput("main", 0, rows), 4) == KVUsage(0, 12, 5, 2)


def test_a_shared_block_names_all_who_hold_it(tmp_path: Path) -> None:
    options = {"admission": "none", "preemption_mode": "recompute"}
    arrivals = poisson_arrivals(3, 20, 100, 60, num_shared=64)
    log = open_log(continuous_log(tmp_path / "log", arrivals, 8, 60, **options))
    steps = [done.output for done in log.steps()]
    output = max(
        steps, key=lambda one: sum(len(row.block_table) for row in one.scheduled) - len(written_slots(one, 16))
    )
    held = [set(row.block_table) for row in output.scheduled]
    shared = {block for index, one in enumerate(held) for other in held[index + 1 :] for block in one & other}
    assert len(shared) >= 4
    drawn = kv_layout.draw(log, output.step)
    titles = [one.text for one in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")]
    for block, title in enumerate(titles):
        holders = [name(row.seq_id) for row in output.scheduled if block in row.block_table]
        assert title.split(": ", 1)[1].startswith(", ".join(holders) or "free")
    assert drawn.count('fill="none"') == len(shared)
    assert f"{len(shared)} of them shared" in drawn
    usage = usage_of(output, 16)
    assert usage.allocated_slots == 16 * len(set().union(*held))


def test_paging_wastes_less_than_a_block_a_row(tmp_path: Path) -> None:
    for usage in kv_usage(open_log(continuous_log(tmp_path / "log", poisson_arrivals(3, 20, 100, 60), 8, 60))):
        assert 0 <= usage.allocated_slots - usage.written_slots <= 15 * usage.num_rows


def test_the_picture_holds_every_block(tmp_path: Path) -> None:
    log = open_log(paged(tmp_path / "log"))
    drawn = kv_layout.draw(log)
    assert "after step 0" in drawn  # the first of the fullest
    titles = [one.text for one in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "block 0: a, 100% written", "block 1: a, 50% written", "block 2: b, 75% written",
        *(f"block {block}: free" for block in range(3, 8)),
    ]  # fmt: skip
    assert "3 of 8 blocks allocated (37.5 %)" in drawn
    assert "reserved but unused: 25.0 %" in drawn
    assert "a: 6 of 8 slots" in drawn


def test_another_step_and_many_rows(tmp_path: Path) -> None:
    log = open_log(continuous_log(tmp_path / "log", poisson_arrivals(3, 40, 1000, 60), 32))
    drawn = kv_layout.draw(log, 50)
    ET.fromstring(drawn)
    assert "after step 50" in drawn
    assert re.search(r"and \d+ more", drawn)
    assert drawn.count("<title>") == 4096


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    log = open_log(paged(tmp_path / "log"))
    with pytest.raises(ValueError, match="no step 3 that ended"):
        kv_layout.draw(log, 3)
    with pytest.raises(ValueError, match="no step that ended"):
        kv_layout.draw(open_log(LogWriter(tmp_path / "other", "static", 2).close()))
