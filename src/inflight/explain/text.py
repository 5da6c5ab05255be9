"""The picture for a terminal, and the ledger as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from fractions import Fraction

from inflight.explain.classes import CLASSES
from inflight.explain.timeline import Timeline
from inflight.explain.view import Row, View, shares, view
from inflight.metrics.ledger import COMPUTED

MIN_WIDTH = 40


def draw(timeline: Timeline, rows: str = "seats", columns: str = "steps", width: int = 80) -> str:
    """The picture in lines of at most ``width`` characters (from ``MIN_WIDTH``), one character a cell.

    Where there are more steps than room, a character stands for several, and shows what most of them were.
    """
    if width < MIN_WIDTH:
        raise ValueError(f"width must be at least {MIN_WIDTH} columns, got {width}")
    seen = view(timeline, rows, columns)
    label_width = min(width // 3, max((len(row.label) for row in seen.rows), default=0))
    room = width - label_width - 3
    num_bins = room if columns == "time" else min(room, len(timeline.steps))
    lines = [line for prose in (title(timeline), *timeline.notes) for line in textwrap.wrap(prose, width)]
    if num_bins:
        lines += ["", *(_line(row, seen, label_width, num_bins) for row in seen.rows)]
        lines += _ruler(seen, label_width, num_bins, columns)
        per_bin = len(timeline.steps) / num_bins
        if columns == "steps" and per_bin > 1:
            lines += textwrap.wrap(f"a character is {per_bin:.1f} steps, and what most of them were", width)
    if seen.num_unused:
        lines.append(f"{seen.num_unused} of {len(timeline.seats)} seats were never taken")
    if seen.rows:
        lines += ["", *_legend(seen, width)]
    if rows == "requests" and seen.rows:
        lines += textwrap.wrap("before each row: the request, its prompt + new tokens", width)
    return "\n".join(line.rstrip() for line in lines)


def ledger_table(timeline: Timeline) -> str:
    """The ledger: what was computed, what the seats were, and how long was waited."""
    slots = timeline.slots
    computed, seats = slots.shares()
    counts = {"useful": slots.seat_steps - slots.dead - slots.empty, "straggler": slots.dead, "empty": slots.empty}
    lines = [f"{'computed row-slots':<22}{slots.num_computed_tokens:>14,}"]
    lines += [f"  {name:<20}{getattr(slots, name):>14,}{percent(computed[name]):>10}" for name in COMPUTED]
    if num_cached := sum(track.num_cached_tokens for track in timeline.sequences):
        num_prompt = sum(track.num_prompt_tokens for track in timeline.sequences if track.first_step_s is not None)
        share = f"{percent(Fraction(num_cached, num_prompt))} of all prompt tokens, not computed"
        lines.append(f"{'from the prefix cache':<22}{num_cached:>14,}   {share}")
    lines += [f"{'seats x steps':<22}{slots.seat_steps:>14,}"]
    lines += [f"  {name:<20}{count:>14,}{percent(seats[name]):>10}" for name, count in counts.items()]
    waits_s = [track.first_step_s - track.arrival_s for track in timeline.sequences if track.first_step_s is not None]
    if waits_s:
        total_s = f"{sum(waits_s):.3f} s"
        lines.append(
            f"{'waited for a seat':<22}{total_s:>14}   mean {sum(waits_s) / len(waits_s):.3f} s, "
            f"longest {max(waits_s):.3f} s"
        )
    return "\n".join(lines)


def percent(share: Fraction) -> str:
    """A share for people."""
    return f"{float(100 * share):.1f} %"


def title(timeline: Timeline) -> str:
    """What the timeline is of, in one line."""
    steps = timeline.steps
    what = [f"{timeline.scheduler} batching", f"{len(timeline.seats)} seats", f"{len(timeline.sequences)} sequences"]
    if not steps:
        return ", ".join([*what, "no step that ended"])
    num_failed = sum(step.failed for step in steps)
    what += [f"{len(steps)} steps" + (f" ({num_failed} of them failed)" if num_failed else "")]
    return ", ".join([*what, f"{steps[-1].end_s - timeline.start_s:.3f} s"])


def _line(row: Row, seen: View, label_width: int, num_bins: int) -> str:
    label = row.label if len(row.label) <= label_width else row.label[: label_width - 1] + "…"
    cells = (max(one, key=lambda part: one[part], default=None) for one in shares(row, seen.start, seen.end, num_bins))
    drawn = "".join(" " if cell is None else CLASSES[cell].character for cell in cells)
    return f"{label:<{label_width}} │{drawn}│"


def _ruler(seen: View, label_width: int, num_bins: int, columns: str) -> Iterator[str]:
    unit, digits = ("s", 3) if columns == "time" else ("step", 0)
    marks = ""
    for position in range(0, num_bins, 16):
        value = seen.start + (seen.end - seen.start) * position / num_bins
        text = f"{value:.{digits}f}" if digits else str(int(value))
        if position + len(text) <= num_bins:
            marks = f"{marks:<{position}}{text}"
    yield f"{unit:>{label_width}}  {marks}"


def _legend(seen: View, width: int) -> Iterator[str]:
    line = ""
    for name in seen.classes:
        entry = f"{CLASSES[name].character} {name} ({CLASSES[name].meaning})"
        if line and len(line) + 3 + len(entry) > width:
            yield line
            line = ""
        line += ("   " if line else "") + entry
    if line:
        yield line
