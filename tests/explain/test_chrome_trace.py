"""The trace as the format wants it: microseconds, one track a seat, slices that do not overlap."""

from __future__ import annotations

import json
from pathlib import Path

from explain.logs import continuous_log, poisson_arrivals, static_log
from explain.test_timeline import timeline_of
from inflight.explain import chrome_trace


def test_a_small_trace_by_hand(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"ann": (4, 3), "bob": (4, 5)}, 2))
    events = json.loads(chrome_trace.draw(timeline))["traceEvents"]
    slices = [(one["tid"], one["name"], one["ts"], one["dur"], one["args"]) for one in events if one["ph"] == "X"]
    assert slices == [
        (1, "ann prefill", 0.0, 10_000.0, {"first_step": 0, "num_steps": 1, "num_tokens": 4}),
        (1, "ann decode", 10_000.0, 20_000.0, {"first_step": 1, "num_steps": 2, "num_tokens": 2}),
        (1, "ann straggler", 30_000.0, 20_000.0, {"first_step": 3, "num_steps": 2, "num_tokens": 2}),
        (2, "bob prefill", 0.0, 10_000.0, {"first_step": 0, "num_steps": 1, "num_tokens": 4}),
        (2, "bob decode", 10_000.0, 40_000.0, {"first_step": 1, "num_steps": 4, "num_tokens": 4}),
    ]
    names = [(one["tid"], one["args"]["name"]) for one in events if one["ph"] == "M" and one["name"] == "thread_name"]
    assert names == [(1, "seat 0"), (2, "seat 1")]
    counters = [(one["ts"], one["args"]) for one in events if one["ph"] == "C"]
    assert counters[0] == (0.0, {"running": 2, "waiting": 0})
    assert counters[3] == (30_000.0, {"running": 1, "waiting": 0})


def test_slices_of_a_real_run_do_not_overlap_and_hold_every_token(tmp_path: Path) -> None:
    timeline = timeline_of(continuous_log(tmp_path / "log", poisson_arrivals(3, 20, 100, 60), 8, num_blocks=60))
    events = json.loads(chrome_trace.draw(timeline))["traceEvents"]
    ends: dict[int, float] = {}
    for one in (event for event in events if event["ph"] == "X"):
        assert one["dur"] > 0
        assert one["ts"] >= ends.get(one["tid"], 0.0) - 0.01
        ends[one["tid"]] = one["ts"] + one["dur"]
    num_tokens = sum(event["args"]["num_tokens"] for event in events if event["ph"] == "X")
    assert num_tokens == timeline.slots.num_computed_tokens
