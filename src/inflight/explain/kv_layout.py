"""A picture of the KV memory at one step: every block, whose it is, and how much of it is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from inflight.core.output import BlockId, SchedulerOutput
from inflight.core.request import SeqId
from inflight.explain.kv_usage import fullest, kv_usage, usage_of, written_slots
from inflight.explain.log import EngineLog
from inflight.explain.view import name

_GRID, _SIDE, _TOP, _MARGIN = 600, 320, 56, 16  # pixels
_MAX_NAMED = 16  # sequences in the list beside the grid
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a51a3")  # Okabe and Ito's, and violet
_SCRATCH, _TEXT, _FAINT = "#9aa3ad", "#24292f", "#57606a"


def draw(log: EngineLog, step: int | None = None) -> str:
    """The memory once the step numbered ``step`` has ended, as SVG; None: the step with the most allocated memory.

    Raises ``ValueError`` if the log does not hold the step, or is not valid.
    """
    number = fullest(kv_usage(log)).step if step is None else step
    output = next((done.output for done in log.steps() if done.output.step == number), None)
    if output is None:
        raise ValueError(f"the log holds no step {number} that ended")
    return _picture(output, log.started.num_blocks, log.started.block_size)


def _picture(output: SchedulerOutput, num_blocks: int, block_size: int) -> str:
    num_across = min(num_blocks, max(16, math.ceil(math.sqrt(1.4 * num_blocks))))
    size = min(26.0, _GRID / num_across)
    grid_height = size * math.ceil(num_blocks / num_across)
    side = _side(output, num_blocks, block_size)
    width = _MARGIN + size * num_across + 28 + _SIDE
    height = max(_TOP + grid_height, _TOP + 20 * len(side)) + _MARGIN
    left = _MARGIN + size * num_across + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="24" font-size="15">The KV memory after step {output.step}: one square a block of '
        f"{block_size} tokens</text>",
        f'<text x="{_MARGIN}" y="43" fill="{_FAINT}">dark: written; pale: reserved, not written; white: free; '
        "framed: shared</text>",
    ]
    owners = _owners(output)
    written = written_slots(output, block_size)
    for block in range(num_blocks):
        x, y = _MARGIN + size * (block % num_across), _TOP + size * (block // num_across)
        parts += _block(x, y, size, owners.get(block), written.get(block, 0) / block_size, block)
    for index, (colour, text) in enumerate(side):
        y = _TOP + 20 * index
        if colour:
            parts.append(f'<rect x="{left:.0f}" y="{y + 3}" width="12" height="12" fill="{colour}"/>')
        x = left + (18 if colour else 0)
        parts.append(f'<text x="{x:.0f}" y="{y + 14}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


class _Owner(NamedTuple):
    colour: str
    names: tuple[str, ...]  # of all who hold the block; the colour is the first one's


def _owners(output: SchedulerOutput) -> dict[BlockId, _Owner]:
    owners = dict.fromkeys(output.scratch_table, _Owner(_SCRATCH, ("scratch",)))
    for index, row in enumerate(output.scheduled):
        new = _Owner(_COLOURS[index % len(_COLOURS)], ())
        for block in row.block_table:
            owner = owners.get(block, new)
            owners[block] = owner._replace(names=(*owner.names, name(row.seq_id)))
    return owners


def _block(x: float, y: float, size: float, owner: _Owner | None, written: float, block: BlockId) -> Iterator[str]:
    inner = size - max(1.0, size * 0.08)
    box = f'x="{x:.1f}" y="{y:.1f}" width="{inner:.1f}" height="{inner:.1f}"'
    if owner is None:
        yield f'<rect {box} fill="#fff" stroke="#d0d7de" stroke-width="0.7"><title>block {block}: free</title></rect>'
        return
    colour, names = owner
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    whose = escape(", ".join(names[:_MAX_NAMED])) + more
    yield f"<g><title>block {block}: {whose}, {written:.0%} written</title>"
    yield f'<rect {box} fill="{colour}" fill-opacity="0.22"/>'
    if written:
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{inner * written:.1f}" height="{inner:.1f}" fill="{colour}"/>'
    if len(names) > 1:
        edge = inner * 0.12
        frame = f'x="{x + edge / 2:.1f}" y="{y + edge / 2:.1f}" width="{inner - edge:.1f}" height="{inner - edge:.1f}"'
        yield f'<rect {frame} fill="none" stroke="{_TEXT}" stroke-width="{edge:.1f}"/>'
    yield "</g>"


def _side(output: SchedulerOutput, num_blocks: int, block_size: int) -> list[tuple[str, str]]:
    """The numbers beside the grid, as (colour or nothing, text)."""
    usage = usage_of(output, block_size)
    num_allocated = usage.allocated_slots // block_size
    num_shared = sum(len(owner.names) > 1 for owner in _owners(output).values())
    shared = [("", f"{num_shared:,} of them shared")] if num_shared else []
    lines = [
        ("", f"{num_allocated:,} of {num_blocks:,} blocks allocated ({_percent(num_allocated / num_blocks)})"),
        *shared,
        ("", f"{usage.written_slots:,} of {usage.allocated_slots:,} slots in them written"),
        ("", f"reserved but unused: {_percent(usage.unused_share)}"),
        ("", ""),
    ]
    for index, row in enumerate(output.scheduled[:_MAX_NAMED]):
        lines.append(
            (
                _COLOURS[index % len(_COLOURS)],
                _holding(row.seq_id, row.start + len(row.token_ids), len(row.block_table) * block_size),
            )
        )
    if (more := len(output.scheduled) - _MAX_NAMED) > 0:
        lines.append(("", f"and {more} more"))
    if output.scratch_table:
        lines.append((_SCRATCH, f"scratch, {len(output.scratch_table)} blocks"))
    return lines


def _holding(seq_id: SeqId, num_written: int, num_allocated: int) -> str:
    whose = name(seq_id)
    return f"{whose if len(whose) <= 18 else whose[:17] + '…'}: {num_written} of {num_allocated} slots"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
