"""Make docs/families.svg: the same twelve requests in static, dynamic and continuous batching, drawn from step logs.

python docs/families.py

Four seats, the built-in model, the same arrivals. What is drawn is what ran on this machine.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from inflight.assemble import assemble
from inflight.bench.in_process import run_in_process
from inflight.config import EngineConfig, from_values
from inflight.explain import svg
from inflight.explain.lanes import read_timeline
from inflight.explain.log import open_log
from inflight.hub.resolve import resolve
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem

NUM_WARM_UP_STEPS = 2
OUT = Path(__file__).with_name("families.svg")
FAMILIES = {
    "Static: four leave together and come back together": {"scheduler": "static", "batch_size": 4},
    "Dynamic: a batch also leaves when the oldest has waited 100 ms": {
        "scheduler": "dynamic",
        "max_batch_size": 4,
        "max_wait_ms": 100.0,
    },
    "Continuous: who runs is decided before every forward pass": {"max_num_seqs": 4, "max_num_batched_tokens": 128},
}
# Seconds of arrival, prompt tokens, new tokens: short and long ones mixed.
REQUESTS = (
    *((0.0, 60, 40), (0.05, 12, 8), (0.12, 150, 12), (0.3, 20, 60), (0.35, 90, 10), (0.5, 10, 30)),
    *((0.55, 40, 6), (0.7, 200, 16), (0.9, 16, 50), (0.95, 30, 9), (1.0, 110, 14), (1.05, 24, 20)),
)


def picture(values: dict, folder: Path) -> str:
    """The seats of one run over time, as SVG."""
    log = folder / f"{values.get('scheduler', 'continuous')}.jsonl"
    config = from_values(EngineConfig, {**values, "step_log": log})
    files = resolve(config.model)
    engine = assemble(config, files, Tokenizer.load(files.path))
    try:
        items = [
            WorkItem(f"r{index}", tuple(range(1000, 1000 + num_prompt)), num_new, arrival_s)
            for index, (arrival_s, num_prompt, num_new) in enumerate(REQUESTS)
        ]
        run_in_process(engine, [WorkItem("warm-up", (5, 6, 7), NUM_WARM_UP_STEPS)])
        run_in_process(engine, items)
    finally:
        engine.close()
    timeline = read_timeline(open_log(log))
    timeline = timeline.clip(first_step=timeline.steps[NUM_WARM_UP_STEPS].number)
    return svg.draw(timeline, rows="requests", columns="time")


def stacked(pictures: dict[str, str]) -> str:
    """One picture below the other, each under its heading."""
    parts, y = [], 0.0
    for heading, one in pictures.items():
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', one).groups())
        parts.append(f'<text x="16" y="{y + 26:.0f}" font-size="17" font-weight="600">{heading}</text>')
        parts.append(one.replace("<svg ", f'<svg y="{y + 34:.0f}" width="{width:.0f}" height="{height:.0f}" ', 1))
        y += height + 48
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {y:.0f}" font-family="system-ui, sans-serif" '
        f'fill="#24292f"><rect width="960" height="{y:.0f}" fill="#ffffff"/>\n' + "\n".join(parts) + "</svg>\n"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        OUT.write_text(stacked({heading: picture(values, Path(folder)) for heading, values in FAMILIES.items()}))
    print(OUT.name)


if __name__ == "__main__":
    main()
