"""The picture as SVG: a row for each seat or request, a column for each step or moment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape

from inflight.explain.classes import CLASSES
from inflight.explain.text import title
from inflight.explain.timeline import Span, Timeline
from inflight.explain.view import Interval, Row, View, shares, view, weights

_WIDTH, _TOP, _MARGIN, _CHAR = 960, 76, 16, 7.0  # pixels; _CHAR is the width of a character of 12 pixels
_MIN_CELL = 3.0  # cells that are narrower are drawn together
_BIN = 2.0  # then, one column is so wide
_TEXT, _FAINT, _GROUND = "#24292f", "#57606a", "#ffffff"


def draw(
    timeline: Timeline, rows: str = "seats", columns: str = "steps", window_s: tuple[float, float] | None = None
) -> str:
    """The picture, 960 pixels wide; ``window_s`` is where an axis of time starts and ends (see ``view``).

    A cell of several classes is divided like its tokens. Where steps are too many for a cell each, a column stands for
    several and is divided, from the bottom up, like their cells.
    """
    seen = view(timeline, rows, columns, window_s)
    row_height = max(9.0, min(26.0, 900 / max(len(seen.rows), 1)))
    longest = max((len(row.label) for row in seen.rows), default=0)
    left = _MARGIN + 12 + min(longest, 30) * _CHAR * min(1.0, row_height / 14)
    bottom = _TOP + row_height * len(seen.rows)
    height = bottom + 34 + 18 * bool(seen.num_unused)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_TEXT}">',
        f'<rect width="{_WIDTH}" height="{height:.0f}" fill="{_GROUND}"/>',
        f'<text x="{_MARGIN}" y="24" font-size="14">{escape(title(timeline))}</text>',
        *_legend(seen),
    ]
    if seen.rows and rows == "requests":
        note = "request, prompt + new tokens"
        parts.append(f'<text x="{_MARGIN}" y="{_TOP - 5}" font-size="11" fill="{_FAINT}">{note}</text>')
    if seen.rows:
        scale = (_WIDTH - left - _MARGIN) / (seen.end - seen.start)
        for index, row in enumerate(seen.rows):
            y = _TOP + index * row_height
            label = row.label if len(row.label) <= 30 else row.label[:29] + "…"
            size = min(12.0, row_height - 1)
            parts.append(
                f'<text x="{left - 10:.0f}" y="{y + row_height / 2 + 0.35 * size:.1f}" text-anchor="end" '
                f'font-size="{size:.0f}">{escape(label)}</text>'
            )
            parts += _row(row, seen, timeline, left, y + row_height * 0.1, row_height * 0.8, scale)
        parts += _axis(seen, columns, left, bottom, scale)
    if seen.num_unused:
        note = f"{seen.num_unused} of {len(timeline.seats)} seats were never taken"
        parts.append(f'<text x="{left:.0f}" y="{height - 8:.0f}" fill="{_FAINT}">{note}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _legend(seen: View) -> Iterator[str]:
    x = float(_MARGIN)
    for name in seen.classes:
        text = f"{name}: {CLASSES[name].meaning}"
        yield f'<rect x="{x:.0f}" y="38" width="12" height="12" fill="{CLASSES[name].colour}" stroke="#00000033"/>'
        yield f'<text x="{x + 17:.0f}" y="48" font-size="11">{text}</text>'
        x += 36 + 6.1 * len(text)


def _row(row: Row, seen: View, timeline: Timeline, left: float, y: float, height: float, scale: float) -> Iterator[str]:
    if (seen.end - seen.start) * scale / len(seen.steps) >= _MIN_CELL:
        for one in row.intervals:
            for start, end, title in _cells(one, seen, timeline):
                start, end = max(start, seen.start), min(end, seen.end)
                if start < end:
                    x, width = left + (start - seen.start) * scale, (end - start) * scale
                    yield f"<g><title>{escape(title)}</title>{''.join(_cell(one.span, x, y, width, height))}</g>"
        return
    num_bins = round((seen.end - seen.start) * scale / _BIN)
    x = left
    yield '<g shape-rendering="crispEdges">'  # neighbours meet without a gap
    for filling, same in groupby(shares(row, seen.start, seen.end, num_bins), key=_rounded):
        width = _BIN * len(list(same))
        base = y + height
        for name, percent in filling:
            base -= height * percent / 100
            yield _rect(name, x, base, width, height * percent / 100)
        x += width
    yield "</g>"


def _rounded(filling: dict[str, float]) -> list[tuple[str, int]]:
    whole = sum(filling.values())  # below 1 where a row begins or ends: its last bin is drawn as a whole one
    return [(name, percent) for name in CLASSES if (percent := round(100 * filling.get(name, 0.0) / (whole or 1.0)))]


def _cells(one: Interval, seen: View, timeline: Timeline) -> Iterator[tuple[float, float, str]]:
    """Each step of an interval: where it starts and ends, and what is told about it."""
    span = one.span
    what = ", ".join(f"{count} {name}" if count else name for name, count in span.parts)
    if not span.num_steps:  # it waits from its arrival on, whatever steps there were
        yield one.start, one.end, f"{what} for {one.end - one.start:.3f} s"
    for column in range(span.column, span.column + span.num_steps):
        yield *seen.steps[column], f"step {timeline.steps[column].number}: {what}"


def _cell(span: Span, x: float, y: float, width: float, height: float) -> Iterator[str]:
    gap = 0.6 if width >= _MIN_CELL else 0.0
    for name, weight in weights(span):
        part = (width - gap) * weight
        yield _rect(name, x, y, part, height)
        x += part


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{CLASSES[name].colour}"/>'


def _axis(seen: View, columns: str, left: float, bottom: float, scale: float) -> Iterator[str]:
    every = tick_distance(56 / scale, whole=columns == "steps")
    tick = every * math.ceil(seen.start / every)
    while tick <= seen.end - (columns == "steps"):
        x = left + (tick - seen.start) * scale
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom + 4:.1f}" stroke="#57606a44"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle" fill="{_FAINT}">{tick:.10g}</text>'
        tick = round(tick / every + 1) * every
    unit = "step" if columns == "steps" else "seconds"
    yield f'<text x="{left - 10:.0f}" y="{bottom + 18:.1f}" text-anchor="end" fill="{_FAINT}">{unit}</text>'


def tick_distance(at_least: float, whole: bool) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``at_least``; of whole numbers if ``whole``."""
    power = 1e-6
    while True:
        for factor in (1, 2, 5):
            if factor * power >= at_least and not (whole and factor * power < 1):
                return round(factor * power, 9)
        power *= 10
