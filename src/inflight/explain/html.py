"""The picture as one HTML file that needs nothing else: zoom, pan, hover; seats or requests, steps or time."""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import msgspec

from inflight.explain.classes import CLASSES
from inflight.explain.text import ledger_table, percent
from inflight.explain.timeline import Parts, Span, Timeline
from inflight.explain.view import name
from inflight.metrics.ledger import COMPUTED


def draw(timeline: Timeline, rows: str = "seats", columns: str = "steps") -> str:
    """The page, opened on the given rows and columns.

    Its data are the spans of the timeline, so that its size grows with the changes in the tracks and hardly with the
    number of steps.
    """
    template = (files("inflight.explain") / "page.html").read_text(encoding="utf-8")
    data = msgspec.json.encode(_data(timeline, rows, columns)).decode()
    return (
        template.replace("{{ledger}}", html.escape(ledger_table(timeline)))
        .replace("{{title}}", html.escape(f"{timeline.scheduler} batching"))
        .replace("{{data}}", data.replace("<", "\\u003c"))  # a request's name must not end the script
    )


def _data(timeline: Timeline, rows: str, columns: str) -> dict[str, Any]:
    computed, seats = timeline.slots.shares()
    share_of = {one: f"{percent(computed[one])} of computed slots" for one in COMPUTED}
    share_of["empty"] = f"{percent(seats['empty'])} of seats"
    parts_index: dict[Parts, int] = {}
    tracks = {
        "seats": [_flat(spans, parts_index) for spans in timeline.seats],
        "requests": [_flat(track.spans, parts_index) for track in timeline.sequences],
    }
    class_index = {one: index for index, one in enumerate(CLASSES)}
    return {
        "rows": rows,
        "columns": columns,
        "notes": timeline.notes,
        "classes": [[one, *CLASSES[one][:3], share_of.get(one, "")] for one in CLASSES],
        "parts": [[number for part, count in parts for number in (class_index[part], count)] for parts in parts_index],
        "first_step": timeline.steps[0].number if timeline.steps else 0,
        "start_us": _differences(round(step.start_s * 1e6) for step in timeline.steps),
        "duration_us": [round((step.end_s - step.start_s) * 1e6) for step in timeline.steps],
        "num_waiting": _differences(step.num_waiting for step in timeline.steps),
        "failed": [column for column, step in enumerate(timeline.steps) if step.failed],
        "sequences": [
            [
                name(track.seq_id),
                track.num_prompt_tokens,
                track.num_new_tokens,
                track.num_cached_tokens,
                round(track.arrival_s * 1e6),
                None if track.first_step_s is None else round(track.first_step_s * 1e6),
            ]
            for track in timeline.sequences
        ],
        "tracks": tracks,
    }


def _flat(spans: Iterable[Span], parts_index: dict[Parts, int]) -> list[int]:
    """A track as (column, number of steps, index of its parts, sequence or -1), one span after the other."""
    flat: list[int] = []
    for span in spans:
        index = parts_index.setdefault(span.parts, len(parts_index))
        flat += (span.column, span.num_steps, index, -1 if span.sequence is None else span.sequence)
    return flat


def _differences(values: Iterable[int]) -> list[int]:
    """The first value, and then by how much each exceeds the one before it."""
    before, differences = 0, []
    for value in values:
        differences.append(value - before)
        before = value
    return differences
