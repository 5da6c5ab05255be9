"""A timeline as a reader wants it: rows of seats or requests over an axis of steps or seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inflight.core.request import SeqId
from inflight.explain.classes import CLASSES
from inflight.explain.timeline import SequenceTrack, Span, Timeline

ROWS = ("seats", "requests")
COLUMNS = ("steps", "time")


class Interval(NamedTuple):
    """What a row is between two places on the axis."""

    start: float
    end: float
    span: Span


class Row(NamedTuple):
    """One row of the picture."""

    label: str
    intervals: tuple[Interval, ...]


class View(NamedTuple):
    """Rows over the axis from ``start`` to ``end``, in steps or in seconds."""

    rows: tuple[Row, ...]
    start: float
    end: float
    steps: tuple[tuple[float, float], ...]  # where each step, by its column, starts and ends
    num_unused: int  # seats that nobody ever took; they are no rows

    @property
    def classes(self) -> list[str]:
        """The classes that occur, in the order of ``CLASSES``."""
        seen = {name for row in self.rows for one in row.intervals for name, _ in one.span.parts}
        return [name for name in CLASSES if name in seen]


def view(
    timeline: Timeline, rows: str = "seats", columns: str = "steps", window_s: tuple[float, float] | None = None
) -> View:
    """The rows of a timeline over an axis of steps (their numbers) or time (seconds since the log's first line).

    ``window_s`` is where an axis of time starts and ends; None: with the first arrival and with the last step.
    """
    steps = timeline.steps
    if not steps:
        return View((), 0.0, 0.0, (), len(timeline.seats))
    by_time = columns == "time"
    places = tuple((step.start_s, step.end_s) if by_time else (step.number, step.number + 1) for step in steps)
    start, end = (timeline.start_s if by_time else places[0][0]), places[-1][1]
    if by_time and window_s is not None:
        start, end = window_s

    def intervals(spans: Iterable[Span]) -> tuple[Interval, ...]:
        return tuple(
            Interval(places[span.column][0], places[span.column + span.num_steps - 1][1], span) for span in spans
        )

    if rows == "seats":
        used = [index for index, spans in enumerate(timeline.seats) if any(span.sequence is not None for span in spans)]
        made = [Row(f"seat {index}", intervals(timeline.seats[index])) for index in used]
        return View(tuple(made), start, end, places, len(timeline.seats) - len(used))
    made = []
    for track in timeline.sequences:
        cells = intervals(track.spans)
        if by_time:
            cells = _from_arrival(track, cells)
        made.append(Row(f"{name(track.seq_id)} {track.num_prompt_tokens}+{track.num_new_tokens}", cells))
    return View(tuple(made), start, end, places, 0)


def name(seq_id: SeqId) -> str:
    """A sequence for people: its request, and its choice unless that is the first. Only printable characters."""
    request_id, choice = seq_id
    printable = "".join(char if char.isprintable() else "?" for char in request_id)
    return f"{printable}#{choice}" if choice else printable


def shares(row: Row, start: float, end: float, num_bins: int) -> list[dict[str, float]]:
    """How much of each bin of [start, end) is of which class; what is missing to 1 is of none.

    A cell of several classes counts for each with its share of the cell's tokens.
    """
    bins: list[dict[str, float]] = [{} for _ in range(num_bins)]
    per_bin = (end - start) / num_bins
    for one in row.intervals:
        low, high = max((one.start - start) / per_bin, 0.0), min((one.end - start) / per_bin, float(num_bins))
        parts = weights(one.span)
        index = int(low)
        while index < high and index < num_bins:
            overlap = min(high, index + 1) - max(low, index)
            for part, weight in parts:
                bins[index][part] = bins[index].get(part, 0.0) + overlap * weight
            index += 1
    return bins


def weights(span: Span) -> list[tuple[str, float]]:
    """The classes of a span's cells, each with its share of a cell."""
    num_tokens = sum(count for _, count in span.parts)
    return [(part, count / num_tokens if num_tokens else 1.0) for part, count in span.parts]


def _from_arrival(track: SequenceTrack, cells: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """In seconds a sequence waits from its arrival on, whether or not steps ran meanwhile."""
    waiting = bool(cells) and cells[0].span.parts == (("waiting", 0),)
    rest = cells[1:] if waiting else cells
    end_s = track.first_step_s if track.first_step_s is not None else (cells[-1].end if cells else track.arrival_s)
    if end_s <= track.arrival_s:
        return rest
    sequence = cells[0].span.sequence if cells else None
    return (Interval(track.arrival_s, end_s, Span(-1, 0, (("waiting", 0),), sequence)), *rest)
