"""Three exercises with batching, in the simulator: change one thing, and see tokens/s, the total time and KV memory.

python bench/try_it.py lengths | arrivals | max_num_seqs [--cost docs/tuning.json] [--num-requests 200]

Ends with 0 if the directions are those that theory expects, and with 1, naming them, if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tuning import DOCS, cost_of
from tuning_sweep import MAX_MODEL_LEN, REFERENCE, WORKLOADS, Figures, draw, run_setting, traffic

from inflight.schedulers.config import StaticConfig
from inflight.sim.cost import LinearStepCost

NUM_BLOCKS = 4096
COLUMNS = (  # title, figure, what one unit of it is
    ("tokens/s", "output_tokens_per_s", 1),
    ("total s", "total_s", 1),
    ("mean batch", "mean_batch", 1),
    ("TTFT p50 ms", "ttft_p50_s", 1000),
    ("TTFT p99 ms", "ttft_p99_s", 1000),
    ("KV peak %", "kv_peak", 100),
)
Runs = dict[str, Figures]
Check = tuple[str, bool]  # what theory expects, and whether it is so
AT_ONCE = float("inf")


def lengths(cost: LinearStepCost, num_requests: int) -> tuple[Runs, list[Check]]:
    """The same mean length of answers (within a few percent), ever more mixed."""
    answers = {"all of 48": "48", "8 to 88": "uniform:8,88", "one of ten long": "0.9x16+0.1x336"}
    static = StaticConfig(batch_size=16, max_model_len=MAX_MODEL_LEN, max_num_waiting_seqs=None)
    continuous = replace(REFERENCE, max_num_seqs=16)
    runs = {}
    for name, outputs in answers.items():
        items = draw("96", outputs, num_requests, AT_ONCE)
        for family, config in (("static", static), ("continuous", continuous)):
            runs[f"{family}, {name}"] = run_setting(config, NUM_BLOCKS, cost, items)
    alike, _, mixed = answers
    loss = {
        family: 1
        - runs[f"{family}, {mixed}"]["output_tokens_per_s"] / runs[f"{family}, {alike}"]["output_tokens_per_s"]
        for family in ("static", "continuous")
    }
    return runs, [
        ("static: the total time grows as lengths differ more", _rises(runs, "static", "total_s")),
        ("static: tokens/s fall as lengths differ more", _falls(runs, "static", "output_tokens_per_s")),
        ("continuous loses less than half as many tokens/s", loss["continuous"] < loss["static"] / 2),
    ]


def arrivals(cost: LinearStepCost, num_requests: int) -> tuple[Runs, list[Check]]:
    """The same requests and the same mean rate, ever burstier."""
    rate_per_s = 0.7 * traffic("chat", num_requests, cost).capacity_per_s
    how = {
        "constant": {"arrival": "constant"},
        "poisson": {"arrival": "poisson"},
        "gamma, burstiness 0.1": {"arrival": "gamma", "burstiness": 0.1},
    }
    config = replace(REFERENCE, max_num_seqs=16)
    runs = {}
    for name, more in how.items():
        items = draw(*WORKLOADS["chat"], num_requests, rate_per_s, **more)
        stretch = (num_requests - 1) / rate_per_s / items[-1].arrival_s  # few arrivals have a rate of their own
        items = [replace(item, arrival_s=item.arrival_s * stretch) for item in items]
        runs[name] = run_setting(config, NUM_BLOCKS, cost, items)
    steady, *bursty = (one["kv_peak"] for one in runs.values())
    return runs, [
        ("the median first token comes later as arrivals get burstier", _rises(runs, "", "ttft_p50_s")),
        ("the slowest first token comes later", _rises(runs, "", "ttft_p99_s")),
        ("the peak of the KV memory is above that of a steady stream", steady < min(bursty)),
    ]


def max_num_seqs(cost: LinearStepCost, num_requests: int) -> tuple[Runs, list[Check]]:
    """All requests at once, on more and more seats."""
    items = draw(*WORKLOADS["chat"], num_requests, AT_ONCE)
    runs = {
        f"max_num_seqs {seats}": run_setting(replace(REFERENCE, max_num_seqs=seats), NUM_BLOCKS, cost, items)
        for seats in (1, 4, 16, 64)
    }
    rates = [one["output_tokens_per_s"] for one in runs.values()]
    gains = [after / before for before, after in pairwise(rates)]
    return runs, [
        ("tokens/s rise", _rises(runs, "", "output_tokens_per_s")),
        ("each fourfold gains less than the one before", all(a > b for a, b in pairwise(gains))),
        ("the total time falls", _falls(runs, "", "total_s")),
        ("the KV memory in use rises", _rises(runs, "", "kv_peak")),
        ("each token comes later", _rises(runs, "", "tpot_p50_s")),
    ]


EXERCISES: dict[str, Callable[[LinearStepCost, int], tuple[Runs, list[Check]]]] = {
    "lengths": lengths,
    "arrivals": arrivals,
    "max_num_seqs": max_num_seqs,
}


def _rises(runs: Runs, prefix: str, figure: str) -> bool:
    values = [one[figure] for name, one in runs.items() if name.startswith(prefix)]
    return all(before < after for before, after in pairwise(values))


def _falls(runs: Runs, prefix: str, figure: str) -> bool:
    values = [one[figure] for name, one in runs.items() if name.startswith(prefix)]
    return all(before > after for before, after in pairwise(values))


def table(runs: Runs) -> str:
    """The runs, one a line."""
    width = max(map(len, runs))
    head = " " * width + "".join(f"{title:>13}" for title, _, _ in COLUMNS)
    lines = [
        f"{name:<{width}}" + "".join(f"{scale * figures[figure]:>13,.1f}" for _, figure, scale in COLUMNS)
        for name, figures in runs.items()
    ]
    return "\n".join((head, *lines))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exercise", choices=EXERCISES)
    parser.add_argument("--cost", type=Path, default=DOCS / "tuning.json", help="a run of bench/tuning.py")
    parser.add_argument("--num-requests", type=int, default=200)
    args = parser.parse_args(argv)
    cost = cost_of(json.loads(args.cost.read_text())["cost"])
    runs, checks = EXERCISES[args.exercise](cost, args.num_requests)
    print(table(runs), end="\n\n")
    for expected, holds in checks:
        print(f"{'as expected' if holds else 'NOT as expected'}: {expected}")
    return 0 if all(holds for _, holds in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
