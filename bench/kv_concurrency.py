"""How many callers run at once in the same KV memory, by the format of the KV.

    python bench/kv_concurrency.py [--kv-bytes 80000000] [--num-requests 96]

All requests are there from the start, and there are more seats than memory for them. What is told is how many rows ran
in the mean of the steps and at most, and how many tokens a second that gave.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import mean

from on_model import OnModel, save
from pressure import CONFIG, requests, told

from inflight.core.output import SchedulerOutput
from inflight.runtime.config import RuntimeConfig

FORMATS = ("float32", "bfloat16", "int8", "int4")
NUM_SEATS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-bytes", type=int, default=80_000_000)
    parser.add_argument("--num-requests", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = replace(CONFIG, max_num_seqs=NUM_SEATS)
    runs = {}
    for kv_format in FORMATS:
        runtime = RuntimeConfig(kv_cache_memory_bytes=args.kv_bytes, kv_cache_dtype=kv_format, swap_space_bytes=0)
        model = OnModel(runtime, config)
        rows: list[int] = []

        def count(output: SchedulerOutput, *_: object, rows: list[int] = rows) -> None:
            rows.append(len(output.scheduled))

        run = model.run(config, requests(args.num_requests, model.vocab_size, args.seed), on_step=count)
        num_blocks = model.executor.capacity.num_blocks
        runs[kv_format] = {**told(run), "num_blocks": num_blocks, "mean_rows": mean(rows), "most_rows": max(rows)}
        print(kv_format, runs[kv_format], flush=True)
        model.executor.close()
    save("kv_concurrency", {"runs": runs, "kv_bytes": args.kv_bytes, "num_requests": args.num_requests})


if __name__ == "__main__":
    main()
