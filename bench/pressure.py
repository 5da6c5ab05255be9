"""Twice too little KV memory: every way to preempt and to admit, against the best fixed number of callers.

    python bench/pressure.py [--num-requests 72] [--repeats 2] [--fixed 8,10,12,14]

Half of the blocks that 32 rows would fill in the mean (prompt and half of the output). All requests are there from the
start. A fixed number of rows (max_num_seqs) is what an operator would tune by hand: the best of them is the baseline.
Runs alternate, and medians are compared.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

from on_model import OnModel, Run, percentiles, save

from inflight.runtime.config import RuntimeConfig
from inflight.schedulers.config import ContinuousConfig
from inflight.workload.item import WorkItem

NUM_SEATS, BLOCK_SIZE = 32, 16
CONFIG = ContinuousConfig(
    max_num_seqs=NUM_SEATS,
    max_num_batched_tokens=256,
    max_model_len=1024,
    max_num_waiting_seqs=None,
    enable_prefix_caching=False,  # every prompt is new: what is measured is preemption alone
)


def requests(num_requests: int, vocab_size: int, seed: int) -> list[WorkItem]:
    draw = random.Random(seed)
    return [
        WorkItem(
            str(index),
            tuple(draw.randrange(vocab_size) for _ in range(round(draw.uniform(32, 256)))),
            round(draw.uniform(32, 512)),
        )
        for index in range(num_requests)
    ]


def blocks_of_a_row(items: Sequence[WorkItem]) -> float:
    """What a row holds in the mean of its life: its prompt, and half of its output."""
    return mean(len(item.prompt_token_ids) + item.max_tokens / 2 for item in items) / BLOCK_SIZE


def told(run: Run) -> dict[str, object]:
    stats = run.stats
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "e2e_s": percentiles(outcome.end_s - outcome.sent_s for outcome in run.outcomes),
        "num_preemptions": stats.num_preemptions,
        "num_swapped_out_blocks": stats.num_swapped_out_blocks,
        "output_sha256": run.output_sha256,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=72)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--fixed", default="8,10,12,14")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = OnModel(RuntimeConfig(num_gpu_blocks_override=4096, swap_space_bytes=2**30), CONFIG)
    items = requests(args.num_requests, model.vocab_size, args.seed)
    per_row = blocks_of_a_row(items)
    num_blocks = int(NUM_SEATS * per_row / 2)
    print(
        f"{len(items)} requests, {NUM_SEATS} rows would fill {NUM_SEATS * per_row:.0f} blocks; there are {num_blocks}"
    )
    variants = {
        f"fixed {rows}": replace(CONFIG, max_num_seqs=rows, admission="none", preemption_mode="recompute")
        for rows in map(int, args.fixed.split(","))
    }
    variants |= {mode: replace(CONFIG, preemption_mode=mode) for mode in ("recompute", "swap", "auto")}
    variants |= {
        f"recompute, admission {admission}": replace(CONFIG, preemption_mode="recompute", admission=admission)
        for admission in ("none", "future-peak", "reserve-all")
    }
    results: dict[str, list[dict]] = {name: [] for name in ("plenty", *variants)}
    for _ in range(args.repeats):
        results["plenty"].append(told(model.run(CONFIG, items, 4096)))
        for name, config in variants.items():
            results[name].append(told(model.run(config, items, num_blocks)))
            last = results[name][-1]
            print(
                f"  {name:32} {last['output_tokens_per_s']:7.1f} tokens/s, {last['num_preemptions']} preemptions",
                flush=True,
            )
    hashes = {one["output_sha256"] for runs in results.values() for one in runs}
    print(f"{len(hashes)} output hash over all runs")

    def speed(name: str) -> float:
        return median(one["output_tokens_per_s"] for one in results[name])

    best = max((name for name in results if name.startswith("fixed")), key=speed)
    tail = median(one["e2e_s"]["p99"] for one in results[best])
    print(f"best fixed number of rows: {best}: {speed(best):.1f} tokens/s, e2e p99 {tail:.1f} s")
    for name in results:
        p99 = median(one["e2e_s"]["p99"] for one in results[name])
        print(f"  {name:32} {speed(name):7.1f} tokens/s = {speed(name) / speed(best):6.1%}", end=", ")
        print(f"e2e p99 {p99:.1f} s = {p99 / tail:5.2f} x")
    save(
        "pressure",
        {
            "results": results,
            "best": best,
            "num_blocks": num_blocks,
            "num_blocks_wanted": NUM_SEATS * per_row,
            "num_requests": len(items),
            "num_hashes": len(hashes),
        },
    )


if __name__ == "__main__":
    main()
