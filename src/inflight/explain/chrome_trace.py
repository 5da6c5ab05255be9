"""The timeline as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", Google, 2016: complete events (``X``) with microseconds, counters (``C``) and
metadata (``M``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from inflight.explain.timeline import Span, Timeline
from inflight.explain.view import name, weights

_PID = 1


def draw(timeline: Timeline) -> bytes:
    """JSON with a track for each seat, a slice for each phase of a sequence, and a count of who runs and waits."""
    events = [_metadata("process_name", 0, f"{timeline.scheduler} batching")]
    for seat, spans in enumerate(timeline.seats):
        if any(span.sequence is not None for span in spans):
            events.append(_metadata("thread_name", seat + 1, f"seat {seat}"))
            events += _slices(timeline, seat, spans)
    for step in timeline.steps:
        counts = {"running": step.num_rows, "waiting": step.num_waiting}
        events.append({"name": "sequences", "ph": "C", "pid": _PID, "ts": _microseconds(step.start_s), "args": counts})
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _slices(timeline: Timeline, seat: int, spans: tuple[Span, ...]) -> Iterator[dict[str, Any]]:
    """Consecutive spans of one sequence that are mostly the same class are one slice."""
    for (sequence, phase), group in groupby(spans, key=lambda span: (span.sequence, _main_class(span))):
        if sequence is None:
            continue
        same = list(group)
        first, last = same[0].column, same[-1].column + same[-1].num_steps - 1
        start_us, end_us = (_microseconds(t) for t in (timeline.steps[first].start_s, timeline.steps[last].end_s))
        track = timeline.sequences[sequence]
        yield {
            "name": f"{name(track.seq_id)} {phase}",
            "cat": phase,
            "ph": "X",
            "pid": _PID,
            "tid": seat + 1,
            "ts": start_us,
            "dur": round(end_us - start_us, 3),
            "args": {
                "first_step": timeline.steps[first].number,
                "num_steps": last - first + 1,
                "num_tokens": sum(span.num_steps * count for span in same for _, count in span.parts),
            },
        }


def _main_class(span: Span) -> str:
    return max(weights(span), key=lambda part: part[1])[0]


def _metadata(what: str, tid: int, value: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "args": {"name": value}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
