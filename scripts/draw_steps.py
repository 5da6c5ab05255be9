"""Draw a step log: a row per sequence, a column per forward pass.

python scripts/draw_steps.py STEPLOG OUT.svg [--first-step N] [--num-steps N]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from inflight.core.request import SeqId
from inflight.engine.recorder import Added, Scheduled, Updated, read_step_log

ROW_HEIGHT, LABEL_WIDTH, WIDTH, TOP = 26, 190, 960, 46
COLOURS = {"waiting": "#d0d4da", "prefill": "#2f6fb7", "decode": "#4fa873", "preempted": "#e08a3c"}
MEANINGS = {
    "waiting": "waits",
    "prefill": "prompt tokens run",
    "decode": "one new token",
    "preempted": "waits, preempted",
}


@dataclass
class Lane:
    """One sequence: what it did in each step, from the first it could have joined to its last."""

    num_prompt_tokens: int
    num_new_tokens: int = 0
    cells: dict[int, str] = field(default_factory=dict)
    num_tokens: dict[int, int] = field(default_factory=dict)
    last_step: int = -1


def read_lanes(path: Path) -> list[Lane]:
    """The lanes of a step log, in order of arrival."""
    lanes: dict[SeqId, Lane] = {}
    preempted: set[SeqId] = set()
    for line in read_step_log(path):
        match line:
            case Added(_, request, None):
                for choice in range(request.sampling.n):
                    lanes[(request.request_id, choice)] = Lane(len(request.prompt_token_ids))
            case Scheduled(_, output):
                preempted |= set(output.preempted)
                for row in output.scheduled:
                    lane = lanes[row.seq_id]
                    num_tokens = len(row.token_ids)
                    lane.cells[output.step] = "prefill" if row.start < lane.num_prompt_tokens else "decode"
                    lane.num_tokens[output.step] = num_tokens
                    preempted.discard(row.seq_id)
                for seq_id, lane in lanes.items():
                    if lane.last_step < 0 and output.step not in lane.cells:
                        lane.cells[output.step] = "preempted" if seq_id in preempted else "waiting"
            case Updated(_, step):
                for event in line.events:
                    lanes[event.seq_id].num_new_tokens += len(event.tokens)
                    if event.finish_reason is not None:
                        lanes[event.seq_id].last_step = step
    return list(lanes.values())


def draw(lanes: list[Lane], first_step: int, num_steps: int) -> str:
    """The picture as SVG."""
    steps = range(first_step, first_step + num_steps)
    column = (WIDTH - LABEL_WIDTH - 16) / num_steps
    height = TOP + ROW_HEIGHT * len(lanes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    kinds = [kind for kind in COLOURS if any(kind in lane.cells.values() for lane in lanes)]
    x = LABEL_WIDTH
    for kind in kinds:
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 18}" y="24">{MEANINGS[kind]}</text>')
        x += 40 + 7 * len(MEANINGS[kind])
    for index, lane in enumerate(lanes):
        y = TOP + index * ROW_HEIGHT
        label = f"{lane.num_prompt_tokens} prompt tokens, {lane.num_new_tokens} new"
        parts.append(f'<text x="{LABEL_WIDTH - 10}" y="{y + 16}" text-anchor="end">{label}</text>')
        for step in steps:
            if kind := lane.cells.get(step):
                left = LABEL_WIDTH + (step - first_step) * column
                tokens = lane.num_tokens.get(step)
                title = f"step {step}: {MEANINGS[kind]}" + (f", {tokens} tokens" if tokens else "")
                parts.append(
                    f'<rect x="{left:.2f}" y="{y + 3}" width="{max(column - 0.6, 0.5):.2f}" height="{ROW_HEIGHT - 6}" '
                    f'fill="{COLOURS[kind]}"><title>{title}</title></rect>'
                )
    bottom = TOP + ROW_HEIGHT * len(lanes)
    every = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if size * column >= 45)
    for step in steps:
        if step % every == 0:
            left = LABEL_WIDTH + (step - first_step) * column
            parts.append(f'<line x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{bottom + 4}" stroke="#57606a22"/>')
            parts.append(f'<text x="{left:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#57606a">{step}</text>')
    parts.append(f'<text x="{LABEL_WIDTH - 10}" y="{bottom + 18}" text-anchor="end" fill="#57606a">forward pass</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steplog", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first-step", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=None)
    args = parser.parse_args()
    lanes = read_lanes(args.steplog)
    last_step = max((step for lane in lanes for step in lane.cells), default=0)
    num_steps = args.num_steps or last_step - args.first_step + 1
    args.out.write_text(draw(lanes, args.first_step, num_steps))
    print(f"{args.out}: {len(lanes)} sequences, {num_steps} steps")


if __name__ == "__main__":
    main()
