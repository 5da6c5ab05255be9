"""Make docs/families.svg: the same twelve requests in static, dynamic and continuous batching, drawn from step logs.

python docs/families.py

Four seats, the built-in model, the same arrivals. What is drawn is what ran on this machine.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from inflight.compare.config import CompareConfig
from inflight.compare.machine import decided, shared_max_model_len
from inflight.compare.runner import open_runner
from inflight.compare.variants import variants
from inflight.config import LoadConfig
from inflight.explain import svg
from inflight.explain.log import open_log
from inflight.explain.read_timeline import read_timeline
from inflight.explain.timeline import Timeline
from inflight.workload.item import WorkItem

OUT = Path(__file__).with_name("families.svg")
CONFIG = CompareConfig(num_seats=4, max_wait_ms=100.0, max_num_batched_tokens=128)
HEADINGS = {
    "static": "Static: four leave together and come back together",
    "dynamic": "Dynamic: a batch also leaves when the oldest has waited 100 ms",
    "continuous": "Continuous: who runs is decided before every forward pass",
}
# Seconds of arrival, prompt tokens, new tokens: short and long ones mixed.
REQUESTS = (
    *((0.0, 60, 40), (0.05, 12, 8), (0.12, 150, 12), (0.3, 20, 60), (0.35, 90, 10), (0.5, 10, 30)),
    *((0.55, 40, 6), (0.7, 200, 16), (0.9, 16, 50), (0.95, 30, 9), (1.0, 110, 14), (1.05, 24, 20)),
)


def timelines() -> dict[str, Timeline]:
    """What each family did with the same requests, on the same model."""
    items = [
        WorkItem(f"r{index}", tuple(range(1000, 1000 + num_prompt)), num_new, arrival_s)
        for index, (arrival_s, num_prompt, num_new) in enumerate(REQUESTS)
    ]
    schedulers = {one.name: one.scheduler for one in variants(CONFIG) if one.name in HEADINGS}
    done = {}
    with open_runner(CONFIG, LoadConfig()) as runner, tempfile.TemporaryDirectory() as folder:
        max_model_len = shared_max_model_len(runner.machine, schedulers.values())
        for name in ("continuous", *HEADINGS):  # once more, first, to warm up
            log = Path(folder) / f"{name}.jsonl"
            runner.run_whole(decided(schedulers[name], runner.machine, max_model_len), items, log, name)
            done[name] = read_timeline(open_log(log))
    return {name: done[name] for name in HEADINGS}


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
    runs = timelines()
    end_s = max(run.steps[-1].end_s for run in runs.values())
    OUT.write_text(
        stacked({HEADINGS[name]: svg.draw(run, "requests", "time", (0.0, end_s)) for name, run in runs.items()})
    )
    print(OUT.name)


if __name__ == "__main__":
    main()
